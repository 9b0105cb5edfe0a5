"""What owns descriptors, packed and made anew around the same descriptors, as behind an exec."""

from __future__ import annotations

import os
import socket as plain_socket
from collections.abc import Callable, Iterator

import gevent
import pytest
from gevent import socket

from execserver.client.rules import wire
from execserver.core.output_log import OutputLog
from execserver.eventloop.ends import of_gevent
from execserver.handover.records import PackedFileWatch, PackedLog, PackedProcess, PackedState
from execserver.protocol.ports import PortAddress, PortDataNotification
from execserver.services.clients.attachment import Attachment
from execserver.services.file_watches.table import FileWatchTable, WatchTotals
from execserver.services.http.service import HttpStreams
from execserver.services.launch.child import Child, Streams, ended_child
from execserver.services.ports.stream import PortStream
from execserver.services.running.spool import Spool, SpoolBudget, spooled
from execserver.services.running.stdin_queue import QUEUED_WRITES, StdinQueue
from tests.services.fakes import FakeSpawner
from tests.support.beside import Beside
from tests.support.greenlets import turns
from tests.support.heard import Heard
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("loop_failures")


class Carrier:
    """Both ends of a handover in one process: each descriptor goes over as a copy of its own."""

    def __init__(self) -> None:
        self.copies: dict[int, int] = {}

    def keep(self, fd: int) -> int:
        """Make a copy, and name it."""
        copy = os.dup(fd)
        self.copies[copy] = fd
        return copy

    def take(self, fd: int) -> int:
        """Give a copy to its new owner."""
        del self.copies[fd]
        return fd


@pytest.fixture
def carrier() -> Iterator[Carrier]:
    made = Carrier()
    yield made
    assert made.copies == {}  # everything that went along has an owner


def read_all(fd: int) -> bytes:
    data = b""
    while piece := os.read(fd, 1 << 20):
        data += piece
    return data


@pytest.mark.parametrize("finishing", [False, True])
def test_queued_input_is_written_by_the_new_queue(carrier: Carrier, finishing: bool) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    old = StdinQueue(writer, owned=True)
    old.put(b"x" * 65_536)
    for number in range(QUEUED_WRITES):
        old.put(b"%03d" % number)
    if finishing:
        old.finish()
    packed = old.pack(carrier)  # type: ignore[arg-type]
    old.close()
    new = StdinQueue(carrier.take(packed.fd), owned=True)
    new.restore(packed)
    assert new.has_room is finishing  # a queue that finishes takes nothing, at once
    found = b""
    while len(found) < 65_536 + 3 * QUEUED_WRITES:
        found += os.read(reader, 1 << 20)
        turns()
    assert found.endswith(b"".join(b"%03d" % number for number in range(QUEUED_WRITES)))
    if not finishing:
        new.finish()
    assert os.read(reader, 10) == b""
    assert new.gone
    os.close(reader)


def test_an_input_that_is_gone_stays_gone(carrier: Carrier) -> None:
    reader, writer = os.pipe()
    old = StdinQueue(writer, owned=True)
    old.close()
    new = StdinQueue(0, owned=True)
    new.restore(old.pack(carrier))  # type: ignore[arg-type]
    assert (new.gone, new.has_room, new.put(b"x")) == (True, True, False)
    os.close(reader)


def test_a_spool_goes_on_with_its_file(carrier: Carrier) -> None:
    log, budget = OutputLog(10_000), SpoolBudget(1 << 30)
    old = spooled(log, 1 << 20, budget)
    pieces = [b"%06d\n" % number * 1000 for number in range(60)]
    for piece in pieces[:40]:
        log.append("stdout", piece, 1)
    wait_until(lambda: old.held_bytes + log.size == 40 * 7000 and not old._writing, 20, pause=gevent.sleep)
    other, left = OutputLog(10_000), SpoolBudget(1 << 30)
    beside = Beside()
    other.restore(log.pack(beside.put), beside.view)
    new = spooled(other, 1 << 20, left)
    new.restore(old.pack(carrier), carrier)  # type: ignore[arg-type]
    assert left.left == budget.left
    old.close()
    for piece in pieces[40:]:
        other.append("stdout", piece, 1)
    wait_until(lambda: not new._writing, 20, pause=gevent.sleep)
    assert data_of(new, other) == b"".join(pieces)
    new.close()
    assert left.left == 1 << 30


def data_of(spool: Spool, log: OutputLog) -> bytes:
    data, after = b"", 0
    while chunks := spool.next_chunks(after) or log.timed_after(after):
        chunks = [each for each in chunks if each.chunk.seq > after]
        data += b"".join(each.chunk.data for each in chunks)
        after = chunks[-1].chunk.seq
    return data


def test_a_forwarded_connection_keeps_its_offsets_and_what_is_not_acknowledged(carrier: Carrier) -> None:
    near, far = plain_socket.socketpair()
    sink, attachment, ended = Heard(), Attachment(), list[str]()
    attachment.sink = sink
    address = _address()
    old = PortStream(
        "p", of_gevent(socket.socket(fileno=near.detach())), attachment, ended.append, address, None, 65_536
    )
    old.start()
    far.sendall(b"first")
    wait_until(lambda: old.sent == 5, 20, pause=gevent.sleep)
    assert old.put(0, b"there", False) == 5
    old.acknowledge(2)
    packed = old.pack(carrier)  # type: ignore[arg-type]
    old.close()
    new = PortStream.unpacked(packed, carrier, attachment, ended.append)  # type: ignore[arg-type]
    new.start()
    sink.messages.clear()
    new.send_again()
    assert len(sink.messages) == 1  # what it has not acknowledged: "rst"
    assert new.put(5, b" and back", True) == 14
    wait_until(lambda: new.received == 14, 20, pause=gevent.sleep)
    assert far.recv(100) == b"there and back"
    far.close()
    wait_until(lambda: new.has_taken(99), 20, pause=gevent.sleep)
    new.acknowledge(5)
    assert ended == ["p"]


def test_little_pieces_that_are_not_acknowledged_are_kept_as_few(carrier: Carrier) -> None:
    near, far = plain_socket.socketpair()
    attachment = Attachment()
    stream = PortStream(
        "p", of_gevent(socket.socket(fileno=near.detach())), attachment, list[str]().append, _address()
    )
    stream.start()
    for sent in range(2, 9002, 2):
        far.sendall(b"ab")
        wait_until(lambda sent=sent: stream.sent == sent, 20, pause=gevent.sleep)  # type: ignore[misc]
    kept = stream.pack(carrier).kept  # type: ignore[arg-type]
    assert (b"".join(kept), len(kept)) == (b"ab" * 4500, 3)
    stream.acknowledge(4099)
    assert b"".join(stream.pack(carrier).kept) == (b"ab" * 4500)[4099:]  # type: ignore[arg-type]
    for copy in list(carrier.copies):
        carrier.take(copy)
        os.close(copy)
    stream.close()
    far.close()
    turns()


def test_little_pieces_that_the_socket_does_not_take_are_queued_as_few(carrier: Carrier) -> None:
    near, far = plain_socket.socketpair()
    stream = PortStream(
        "p", of_gevent(socket.socket(fileno=near.detach())), Attachment(), list[str]().append, _address()
    )
    for offset in range(0, 9000, 2):  # it is not started: nothing is written yet
        stream.put(offset, b"ab", False)
    stream.put(9000, b"c" * 5000, False)
    stream.put(14000, b"d", True)
    queue = stream.pack(carrier).queue  # type: ignore[arg-type]
    assert [len(piece) for piece in queue] == [4096, 4096, 808, 5000, 1]
    assert b"".join(queue) == b"ab" * 4500 + b"c" * 5000 + b"d"
    stream.start()
    wait_until(lambda: stream.received == 14001, 20, pause=gevent.sleep)
    assert far.recv(14001) == b"".join(queue)
    for copy in list(carrier.copies):
        carrier.take(copy)
        os.close(copy)
    stream.close()
    far.close()


@pytest.mark.parametrize(
    ("port_id", "binary", "carries", "wanted"),
    [
        ("p", True, True, b"\0"),
        ("p", False, True, b"{"),
        ("p", True, False, b"{"),
        ('a"b', True, True, b"{"),
    ],
)
def test_a_connection_is_sent_on_in_the_form_that_its_client_takes(
    carrier: Carrier, port_id: str, binary: bool, carries: bool, wanted: bytes
) -> None:
    near, far = plain_socket.socketpair()
    sink, attachment = Heard(), Attachment()
    sink.carries_binary = carries
    attachment.sink = sink
    how = (attachment, list[str]().append, _address(), None, 65_536, binary)
    old = PortStream(port_id, of_gevent(socket.socket(fileno=near.detach())), *how)
    old.start()
    far.sendall(b"x" * 8192)
    wait_until(lambda: old.sent == 8192, 20, pause=gevent.sleep)
    packed = old.pack(carrier)  # type: ignore[arg-type]
    old.close()
    new = PortStream.unpacked(packed, carrier, attachment, lambda port_id: None)  # type: ignore[arg-type]
    new.send_again()
    half = len(sink.messages) // 2
    assert sink.messages[:half] == sink.messages[half:]
    assert {message[:1] for message in sink.messages} == {wanted}
    notes = [wire.decode_message(message) for message in sink.messages[:half]]
    told = [wire.decode(PortDataNotification, note.params, "x") for note in notes]  # type: ignore[union-attr]
    assert b"".join(each.chunk for each in told) == b"x" * 8192
    new.close()
    far.close()
    turns()


def test_a_stream_that_is_over_is_told_again(carrier: Carrier) -> None:
    near, far = plain_socket.socketpair()
    attachment, ended = Attachment(), list[str]()
    old = PortStream(
        "p", of_gevent(socket.socket(fileno=near.detach())), attachment, ended.append, _address(), None, 9000
    )
    old.start()
    far.sendall(b"last")
    far.close()
    old.put(0, b"", True)
    wait_until(lambda: old.has_taken(99), 20, pause=gevent.sleep)
    new = PortStream.unpacked(old.pack(carrier), carrier, attachment, ended.append)  # type: ignore[arg-type]
    new.start()
    attachment.sink = sink = Heard()
    new.send_again()
    assert [b"port/closed" in message for message in sink.messages] == [False, False, True]
    new.acknowledge(4)
    assert ended == ["p"]
    turns()


def _address() -> PortAddress:
    return PortAddress(host="127.0.0.1", port=1)


def test_a_watch_of_files_comes_back_as_one_that_has_ended() -> None:
    attachment = Attachment()
    attachment.sink = sink = Heard()
    table = FileWatchTable(WatchTotals(), attachment)
    batch = b'{"method":"fs/changes","params":{"watchId":"w","seq":3}}'
    table.unpack([PackedFileWatch("w", 3, [batch], True)])
    assert sink.messages == [batch]
    watch = table.known("w")
    assert watch.ended
    assert table.pack() == [PackedFileWatch("w", 3, [batch], False)]
    watch.resume(2)
    assert sink.messages == [batch, batch]
    table.close()


def test_a_child_that_has_ended_has_nobody_to_signal() -> None:
    log = PackedLog(0, b"", b"", b"", b"", [], 3, 1, 0)
    state = PackedState(False, "EXITED", 3, 2, False, None, False, b"", [], log)
    before = ("p", None, ["x"], 77, 0.0, 70, 5, 3 << 8, False, False, (50, 60))
    packed = PackedProcess(*before, [], None, False, "process", None, "s", None, [], None, None, None, state)
    child = ended_child(packed)
    assert (child.pid, child.zygote, child.exit_code, child.kill_group()) == (77, 70, 3, False)
    assert (child.cpu_us, child.peak_bytes, child.is_lost) == (50, 60, False)


def test_a_child_that_was_handed_over_takes_its_outputs() -> None:
    child = Child.handed_over(5, 77, True, FakeSpawner())
    child.adopt([("pty", 30)])
    assert (child.master_fd, child.outputs, child.pid) == (30, [("pty", 30)], 77)
    plain = Child(6, False, Streams(), FakeSpawner())
    plain.adopt([])
    assert plain.master_fd is None


def test_streamed_bodies_end_with_the_reason() -> None:
    ends: list[str] = []

    class Body:
        def __init__(self, end: Callable[[str], None]) -> None:
            self.interrupt = end

    streams = HttpStreams(None, Heard())  # type: ignore[arg-type]
    streams._streams["a"] = Body(ends.append)  # type: ignore[assignment]
    streams._streams["b"] = None
    streams.interrupt("why")
    assert (ends, streams._streams) == (["why"], {})
    gevent.sleep(0)
