"""The end wrappers speak to, and peers that send what no wrapper does, too much, or nothing."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

import pytest

from execserver.zygote.groups import process_stat
from execserver.zygote.supervision.trap.callers import Caller
from execserver.zygote.supervision.wrapper import wrapper_end
from execserver.zygote.supervision.wrapper.wrapper_end import (
    UNHEARD_AT_ONCE,
)
from tests.support.wrapper_peer import frame
from tests.zygote.wrapper_scene import REQUEST, Scene, collected


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A scene of its own."""
    made = Scene()
    yield made
    made.close()


def many_descriptors(count: int) -> list[int]:
    return [2] * count


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x01\x00\x80\x00",  # one byte above the limit
        frame(b""),
        frame(b"{"),
        frame(b"\xff"),
        frame(b"[" * 50_000),
        frame(b"1" * 5000),
        frame([]),
        frame({}),
        frame({**REQUEST, "file": 5}),
        frame({**REQUEST, "argv": "x"}),
        frame({**REQUEST, "argv": [None]}),
        frame({**REQUEST, "env": []}),
        frame({**REQUEST, "env": {"K": 1}}),
        frame({**REQUEST, "env": {"K": "\0"}}),
        frame({**REQUEST, "file": "/bin/x\0y"}),
        frame({**REQUEST, "file": "\ud800"}),
        frame({**REQUEST, "workdir": "tmp"}),
        frame({key: value for key, value in REQUEST.items() if key != "workdir"}),
    ],
)
def test_what_is_no_request_costs_only_its_sender_the_answer(data: bytes, scene: Scene) -> None:
    with scene.connect() as hostile, scene.connect() as honest:
        hostile.sendall(data)
        assert scene.is_dropped(hostile)
        assert scene.ask(honest)[1].file == b"/bin/x"
    assert len(scene.broker.arrived) == 1


@pytest.mark.parametrize("count", [1, 16, 17, 100])
def test_descriptors_nobody_asked_for_are_closed(count: int, scene: Scene) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with scene.connect() as stream:
        socket.send_fds(stream, [frame(REQUEST)], many_descriptors(count))
        assert scene.is_dropped(stream)
    assert len(os.listdir("/proc/self/fd")) == before
    assert scene.broker.arrived == []


@pytest.mark.parametrize(
    ("message", "count"),
    [
        ({"fds": [0, 1]}, 1),
        ({"fds": [0]}, 2),
        ({"fds": [1, 1]}, 2),
        ({"fds": [-1]}, 1),
        ({"fds": [1 << 40]}, 1),
        ({"fds": [True]}, 1),
        ({"fds": ["1"]}, 1),
        ({"fds": 3}, 3),
        ({}, 0),
        ([], 0),
        (REQUEST, 0),
        ({"fds": list(range(17))}, 17),
    ],
)
def test_descriptors_that_do_not_fit_their_numbers_end_the_exec(
    message: object, count: int, scene: Scene
) -> None:
    with scene.connect() as stream:
        before = len(os.listdir("/proc/self/fd"))
        caller, _ = scene.ask(stream)
        got = collected(scene, caller)
        assert stream.recv(100)[4:] == b'{"action":"Escalate","signals":true}'
        if count:
            socket.send_fds(stream, [frame(message)], many_descriptors(count))
        else:
            stream.sendall(frame(message))
        scene.until(lambda: scene.broker.gone)
        assert got == []
        assert scene.is_dropped(stream)
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A program that stands for one outside."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


def is_in(pid: int, state: bytes) -> bool:
    found = process_stat(pid)
    return found is not None and found[0] == state


def standing(scene: Scene, stream: socket.socket, program: int) -> Caller:
    """Let a program run in place of a wrapper that passes signals on."""
    caller, _ = scene.ask(stream)
    got = collected(scene, caller)
    stream.recv(100)
    stream.sendall(frame({"fds": [], "signals": True}))
    scene.until(lambda: got)
    assert got[0] is not None
    got[0].close()
    caller.replaced(program)
    return caller


def test_a_signal_reaches_the_program_and_its_end_the_wrapper(
    scene: Scene, sleeper: subprocess.Popen[bytes]
) -> None:
    with scene.connect() as stream:
        caller = standing(scene, stream, sleeper.pid)
        for signum, state in ((signal.SIGTSTP, b"T"), (signal.SIGCONT, b"S")):
            stream.sendall(frame({"signal": signum}))
            scene.until(functools.partial(is_in, sleeper.pid, state))
        stream.sendall(frame({"signal": signal.SIGUSR1}))
        scene.until(lambda: sleeper.poll() is not None)
        assert sleeper.returncode == -signal.SIGUSR1
        scene.broker.release(caller)
        caller.finish(signal.SIGUSR1)
        assert stream.recv(100)[4:] == b'{"exit_code":138,"signal":10}'


def test_who_passes_no_signals_on_hears_of_none(scene: Scene) -> None:
    with scene.connect() as stream:
        caller, _ = scene.ask(stream)
        scene.broker.release(caller)
        caller.finish(signal.SIGTERM)
        assert stream.recv(100)[4:] == b'{"exit_code":143}'


@pytest.mark.parametrize(
    "data",
    [
        *(frame({"signal": signum}) for signum in (0, -1, 9, 19, 65, True, "1", None, [15])),
        *(frame({}), frame([]), frame(REQUEST), frame({"fds": []})),
        b"\xff\x00\x00\x00",  # more than any signal takes
    ],
)
def test_what_is_no_signal_is_the_end(data: bytes, scene: Scene, sleeper: subprocess.Popen[bytes]) -> None:
    with scene.connect() as stream:
        caller = standing(scene, stream, sleeper.pid)
        stream.sendall(data)
        scene.until(lambda: scene.broker.gone == [caller])
    assert sleeper.poll() is None


def test_a_storm_of_signals_keeps_nobody_waiting(scene: Scene, sleeper: subprocess.Popen[bytes]) -> None:
    with scene.connect() as stream, scene.connect() as honest:
        standing(scene, stream, sleeper.pid)
        stream.setblocking(False)
        storm = frame({"signal": signal.SIGWINCH})
        with contextlib.suppress(BlockingIOError):
            while True:
                stream.send(storm)
        honest.sendall(frame(REQUEST))
        for _ in range(4):  # its length, its text, and a turn for each of the other one's
            scene.loop.after(0, lambda: None)
            scene.loop.turn()
        assert len(scene.broker.arrived) == 2


def test_a_signal_without_a_program_is_the_end(scene: Scene) -> None:
    with scene.connect() as stream:
        caller, _ = scene.ask(stream)
        stream.sendall(frame({"signal": signal.SIGTERM}))
        scene.until(lambda: scene.broker.gone == [caller])


def test_what_comes_unasked_later_is_the_end(scene: Scene) -> None:
    with scene.connect() as stream:
        caller, _ = scene.ask(stream)
        stream.sendall(frame({"fds": []}))
        scene.until(lambda: scene.broker.gone == [caller])


def test_descriptors_on_later_pieces_are_nobodys(scene: Scene) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with scene.connect() as stream:
        data = frame(REQUEST)
        stream.sendall(data[:1])
        scene.settle()
        socket.send_fds(stream, [data[1:6]], many_descriptors(5))
        scene.settle()
        socket.send_fds(stream, [data[6:]], many_descriptors(5))
        scene.until(lambda: scene.broker.arrived)
    scene.until(lambda: scene.broker.gone)
    assert len(os.listdir("/proc/self/fd")) == before


def test_handshakes_that_are_none_are_dropped(scene: Scene) -> None:
    before = len(os.listdir("/proc/self/fd"))
    datagrams = socket.socketpair(type=socket.SOCK_DGRAM)
    listening = socket.socket(socket.AF_UNIX)
    internet = socket.socket(socket.AF_INET)
    with datagrams[0], datagrams[1], listening, internet, tempfile.TemporaryFile() as file:
        for descriptors in (
            [],
            [2, 2],
            [2] * 40,
            [file.fileno()],
            [datagrams[0].fileno()],
            [internet.fileno()],
        ):
            socket.send_fds(scene.socket, [b"\0"], descriptors)
        listening.bind(b"\0execserver-test-%d" % os.getpid())
        listening.listen()
        socket.send_fds(scene.socket, [b"\0"], [listening.fileno()])
        scene.socket.send(b"")
        scene.socket.send(b"x" * 20_000)
        with scene.connect() as honest:
            assert scene.ask(honest)[1].file == b"/bin/x"
    scene.until(lambda: scene.broker.gone)
    assert len(os.listdir("/proc/self/fd")) == before


def test_silence_has_an_end(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapper_end, "PATIENCE_S", 1.0)
    with scene.connect() as silent, scene.connect() as half, scene.connect() as never:
        half.sendall(frame(REQUEST)[:-1])
        caller, _ = scene.ask(never)
        got = collected(scene, caller)
        assert scene.is_dropped(silent)
        assert scene.is_dropped(half)
        scene.until(lambda: scene.broker.gone == [caller])
        assert got == []


def test_who_waits_for_a_decision_may_wait(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapper_end, "PATIENCE_S", 1.0)
    with scene.connect() as stream:
        caller, _ = scene.ask(stream)
        deadline = time.monotonic() + 1.5
        scene.until(lambda: time.monotonic() > deadline)
        scene.broker.release(caller)
        caller.run()
        assert stream.recv(100)[4:] == b'{"action":"Run"}'


def test_many_at_once_wait_in_the_socket(scene: Scene) -> None:
    streams = [scene.connect() for _ in range(UNHEARD_AT_ONCE + 5)]
    scene.settle()
    assert not scene.source._is_watched
    for stream in streams:
        stream.sendall(frame(REQUEST))
    scene.until(lambda: len(scene.broker.arrived) == len(streams))
    for stream in streams:
        stream.close()
    scene.until(lambda: len(scene.broker.gone) == len(streams))


def test_nobody_is_brought_to_a_full_desk(scene: Scene) -> None:
    scene.broker.is_full = True
    scene.source.go_on()
    with scene.connect() as stream:
        stream.sendall(frame(REQUEST))
        scene.settle()
        assert scene.broker.arrived == []
        scene.broker.is_full = False
        scene.until(lambda: scene.broker.arrived)


def test_large_requests_of_all_together_have_a_bound(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapper_end, "HELD_BYTES", 1000)
    with scene.connect() as first, scene.connect() as second:
        caller, _ = scene.ask(first, {**REQUEST, "env": {"K": "v" * 1000}})
        second.sendall(frame(REQUEST))
        scene.settle()
        arrived = len(scene.broker.arrived)
        scene.broker.release(caller)
        caller.run()
        scene.until(lambda: len(scene.broker.arrived) == 2)
    # It may have been let in together with the first, but never after it.
    assert arrived in (1, 2)


def test_a_peer_that_leaves_no_room_for_an_answer_is_given_up(scene: Scene) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                theirs.send(b"x" * 4096)
        socket.send_fds(scene.socket, [b"\0"], [theirs.fileno()])
        theirs.close()
        caller, _ = scene.ask(ours)
        scene.broker.release(caller)
        caller.run()
        assert scene.source._wrappers == set()
