"""How the streams of one websocket take turns in writing."""

from __future__ import annotations

import gevent
import pytest
from gevent.event import Event

from execserver.remote.fair_writer import BATCH_BYTES, URGENT_FRAMES, FairWriter
from tests.support.waiting import wait_until


class Stream:
    """A source with a number of frames."""

    def __init__(self, name: bytes, frames: int, size: int = 60_000) -> None:
        self.left = [name * size] * frames

    def take_frame(self) -> bytes | None:
        return self.left.pop() if self.left else None

    @property
    def has_frames(self) -> bool:
        return bool(self.left)


def test_streams_take_turns() -> None:
    written: list[bytes] = []
    writer = FairWriter(lambda message: [message[:1]], written.extend)
    flood = Stream(b"f", 20)
    writer.ready(flood)
    greenlet = gevent.spawn(writer.run)
    wait_until(lambda: written, pause=lambda _: gevent.sleep(0))
    assert len(flood.left) >= 16
    writer.ready(Stream(b"k", 1, 1))
    writer.urgent(b"u")
    wait_until(lambda: not flood.left, pause=lambda _: gevent.sleep(0))
    wait_until(lambda: b"".join(written).count(b"f") == 20, pause=lambda _: gevent.sleep(0))
    order = b"".join(written)
    most = -(-BATCH_BYTES // 60_000) + 1
    assert order.index(b"u") < order.index(b"k") <= order.index(b"u") + most
    assert order.index(b"k") <= 3 * most
    writer.close()
    greenlet.join(20)
    assert greenlet.ready()


def test_whoever_flushes_writes_while_the_writer_rests() -> None:
    written: list[bytes] = []
    writer = FairWriter(lambda message: [message], written.extend)
    greenlet = gevent.spawn(writer.run)
    gevent.sleep(0)
    stream = Stream(b"f", 2, 10)
    writer.ready(stream)
    writer.flush()
    assert written == [b"f" * 10] * 2
    writer.flush()
    assert len(written) == 2
    writer.close()
    greenlet.join(20)
    assert greenlet.ready()


def test_the_writer_is_not_woken_for_what_a_flush_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    writer = FairWriter(lambda message: [message], lambda buffers: None)
    batch = writer._batch

    def counted() -> list[bytes]:
        looks.append(1)
        return batch()

    monkeypatch.setattr(writer, "_batch", counted)
    greenlet = gevent.spawn(writer.run)
    gevent.sleep(0)
    assert len(looks) == 1
    for _ in range(3):
        writer.ready(Stream(b"f", 1, 10))
        writer.flush()
        gevent.sleep(0)
    assert len(looks) == 4
    writer.ready(Stream(b"f", 1, 10))
    wait_until(lambda: len(looks) > 5, pause=gevent.sleep)  # it writes what nobody flushes, and rests again
    writer.close()
    greenlet.join(20)
    assert greenlet.ready()


def test_two_never_write_at_the_same_time() -> None:
    begun, may_end = Event(), Event()
    writing: list[int] = []
    written: list[bytes] = []

    def write(buffers: list[bytes]) -> None:
        assert not writing
        writing.append(1)
        begun.set()
        may_end.wait()
        writing.clear()
        written.extend(buffers)

    writer = FairWriter(lambda message: [message], write)
    greenlet = gevent.spawn(writer.run)
    writer.ready(Stream(b"1", 1, 1))
    flushing = gevent.spawn(writer.flush)
    assert begun.wait(20)
    writer.ready(Stream(b"2", 1, 1))
    writer.flush()  # somebody writes: nothing to do here
    gevent.sleep(0)
    assert written == []
    may_end.set()
    wait_until(lambda: written == [b"1", b"2"], pause=gevent.sleep)
    writer.close()
    gevent.joinall([greenlet, flushing], timeout=20)
    assert greenlet.ready()
    assert flushing.ready()


def test_what_a_flush_meets_is_told_by_the_writer() -> None:
    def write(buffers: list[bytes]) -> None:
        raise ConnectionResetError("gone")

    writer = FairWriter(lambda message: [message], write)
    greenlet = gevent.spawn(writer.run)
    gevent.sleep(0)
    writer.urgent(b"u")
    writer.flush()
    with pytest.raises(ConnectionResetError, match="gone"):
        greenlet.get(timeout=20)


def test_urgent_frames_are_bounded() -> None:
    writer = FairWriter(lambda message: [message], lambda buffers: None)
    assert [writer.urgent(b"x") for _ in range(URGENT_FRAMES + 2)] == [True] * URGENT_FRAMES + [False] * 2


def test_a_forgotten_stream_is_not_asked() -> None:
    written: list[bytes] = []
    writer = FairWriter(lambda message: [message], written.extend)
    stream = Stream(b"s", 1)
    writer.ready(stream)
    writer.forget(stream)
    greenlet = gevent.spawn(writer.run)
    writer.urgent(b"u")
    wait_until(lambda: written, pause=gevent.sleep)
    writer.close()
    greenlet.join()
    assert written == [b"u"]


class Taking:
    """A peer that takes so many bytes at once, and all that is written with patience."""

    def __init__(self, at_once: int) -> None:
        self.took = b""
        self.at_once = at_once
        self.writer = FairWriter(lambda message: [message], self._write, self._write_at_once)

    def _write(self, buffers: list[bytes]) -> None:
        self.took += b"".join(buffers)

    def _write_at_once(self, buffers: list[bytes]) -> list[bytes]:
        whole = b"".join(buffers)
        taken, self.at_once = whole[: self.at_once], max(0, self.at_once - len(whole))
        self.took += taken
        return [whole[len(taken) :]] if len(taken) < len(whole) else []


def test_what_the_kernel_takes_at_once_needs_no_greenlet() -> None:
    peer = Taking(100)
    peer.writer.ready(Stream(b"s", 2, 3))
    peer.writer.urgent(b"u")
    peer.writer.flush_at_once()
    assert peer.took == b"u" + b"s" * 6


def test_what_the_kernel_does_not_take_at_once_comes_before_all_else() -> None:
    peer = Taking(4)
    greenlet = gevent.spawn(peer.writer.run)
    gevent.sleep(0)
    peer.writer.ready(Stream(b"s", 2, 3))
    peer.writer.flush_at_once()
    assert peer.took == b"ssss"
    peer.at_once = 100
    peer.writer.urgent(b"u")
    peer.writer.flush_at_once()
    assert peer.took == b"ssss", "the middle of a frame is still to be written"
    wait_until(lambda: peer.took == b"ssssssu", pause=gevent.sleep)
    peer.writer.close()
    greenlet.join(20)
    assert greenlet.ready()


def test_nothing_is_written_at_once_while_somebody_writes() -> None:
    peer = Taking(100)
    may_end = Event()
    begun = Event()

    def write(buffers: list[bytes]) -> None:
        begun.set()
        may_end.wait()
        peer.took += b"".join(buffers)

    peer.writer._write = write
    greenlet = gevent.spawn(peer.writer.run)
    peer.writer.urgent(b"1")
    assert begun.wait(20)
    peer.writer.urgent(b"2")
    peer.writer.flush_at_once()
    assert peer.took == b""
    may_end.set()
    wait_until(lambda: peer.took == b"12", pause=gevent.sleep)
    peer.writer.close()
    peer.writer.flush_at_once()
    greenlet.join(20)
    assert greenlet.ready()


def test_what_a_write_at_once_meets_is_told_by_the_writer() -> None:
    def refuse(buffers: list[bytes]) -> list[bytes]:
        raise ConnectionResetError("gone")

    writer = FairWriter(lambda message: [message], lambda buffers: None, refuse)
    greenlet = gevent.spawn(writer.run)
    gevent.sleep(0)
    writer.urgent(b"u")
    writer.flush_at_once()
    with pytest.raises(ConnectionResetError, match="gone"):
        greenlet.get(timeout=20)
