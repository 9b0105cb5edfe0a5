"""The end wrappers speak to: real wrappers, and peers that send whatever they like."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from execserver.zygote.supervision import wrapper_end
from execserver.zygote.supervision.callers import Caller, Execution, Means
from execserver.zygote.supervision.watch import Watch
from execserver.zygote.supervision.wrapper_end import (
    UNHEARD_AT_ONCE,
    Refused,
    WrapperEnd,
    read_numbers,
    read_request,
    shell_variables,
)
from tests.helpers.test_execve_wrapper import COMMAND
from tests.support.wrapper_peer import frame

LIMIT_S = 20.0
REQUEST = {"file": "/bin/x", "argv": ["x", "y"], "workdir": "/tmp", "env": {"K": "V"}}


class Desk:
    """Stands for the one that decides: it keeps who arrived, and who is gone."""

    def __init__(self, watch: Watch) -> None:
        self.is_full = False
        self.arrived: list[tuple[Caller, Execution]] = []
        self.gone: list[Caller] = []
        self.watch = watch

    def arrive(self, caller: Caller, execution: Execution) -> None:
        """Hold the caller until the test decides."""
        self.arrived.append((caller, execution))
        self.watch.add(caller.alive_fd, lambda: self.end(caller))

    def end(self, caller: Caller) -> None:
        """Note that a caller is gone."""
        self.release(caller)
        caller.gone()
        self.gone.append(caller)

    def release(self, caller: Caller) -> None:
        """Hold it no longer, as before an answer."""
        self.watch.drop(caller.alive_fd)


class Scene:
    """A wrapper end with its loop, and the socket that wrappers inherit."""

    def __init__(self) -> None:
        ours, self.socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.watch = Watch()
        self.desk = Desk(self.watch)
        self.source = WrapperEnd(socket.socket(fileno=ours.detach()), self.desk, self.watch)  # type: ignore[arg-type]

    def until(self, condition: Callable[[], object]) -> None:
        """Turn the loop until a condition holds."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline
            self.watch.after(0.005, lambda: None)
            self.watch.turn()
            self.source.go_on()

    def settle(self) -> None:
        """Turn the loop until all that was sent has been looked at."""
        for _ in range(20):
            self.watch.after(0, lambda: None)
            self.watch.turn()
            self.source.go_on()

    def connect(self, *more: int, data: bytes = b"\0") -> socket.socket:
        """Shake hands; return the wrapper's end of the stream."""
        ours, theirs = socket.socketpair()
        ours.settimeout(LIMIT_S)
        with theirs:
            socket.send_fds(self.socket, [data], [theirs.fileno(), *more])
        return ours

    def ask(self, stream: socket.socket, request: object = REQUEST) -> tuple[Caller, Execution]:
        """Send a request; return what the desk got."""
        count = len(self.desk.arrived)
        stream.sendall(frame(request))
        self.until(lambda: len(self.desk.arrived) > count)
        return self.desk.arrived[-1]

    def start(self, *argv: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start the real wrapper."""
        env = {"PATH": "/usr/bin:/bin", "CODEX_ESCALATE_SOCKET": str(self.socket.fileno())}
        return subprocess.Popen(
            [*COMMAND, *argv],
            env=env,
            pass_fds=[self.socket.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )

    def is_dropped(self, stream: socket.socket) -> bool:
        """Tell whether a stream ends without an answer; its descriptors are then closed as well."""
        self.until(lambda: select.select([stream], [], [], 0)[0])
        try:
            return stream.recv(64) == b""
        except ConnectionResetError:
            return True  # something of what was sent is left unread

    def close(self) -> None:
        """Close everything."""
        self.source.close()
        for caller, _ in self.desk.arrived:
            self.desk.release(caller)
            caller.gone()
        self.socket.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A scene of its own."""
    made = Scene()
    yield made
    made.close()


def finish(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, errors


def collected(scene: Scene, caller: Caller) -> list[Means | None]:
    """Collect what a program needs; the list is empty until it came."""
    got: list[Means | None] = []
    caller.collect(got.append)
    return got


def test_a_wrapper_brings_what_its_program_would_get(scene: Scene, tmp_path: Path) -> None:
    process = scene.start("./prog", "name", "-x", cwd=tmp_path)
    scene.until(lambda: scene.desk.arrived)
    caller, execution = scene.desk.arrived[0]
    folder = os.path.realpath(tmp_path).encode()
    assert (execution.file, list(execution.argv)) == (folder + b"/prog", [b"name", b"-x"])
    assert execution.workdir == folder
    scene.desk.release(caller)
    caller.deny("Execution denied: it is late")
    assert finish(process) == (1, b"", b"Execution denied: it is late\n")


def test_run_lets_the_wrapper_become_the_program(scene: Scene) -> None:
    process = scene.start("/bin/echo", "echo", "ran")
    scene.until(lambda: scene.desk.arrived)
    caller, _ = scene.desk.arrived[0]
    scene.desk.release(caller)
    caller.run()
    assert finish(process) == (0, b"ran\n", b"")


def test_escalate_brings_folder_environment_and_descriptors(scene: Scene, tmp_path: Path) -> None:
    process = scene.start("/bin/x", "x", cwd=tmp_path)
    scene.until(lambda: scene.desk.arrived)
    caller, _ = scene.desk.arrived[0]
    got = collected(scene, caller)
    scene.until(lambda: got)
    (means,) = got
    assert means is not None
    assert list(means.env) == [b"PATH=/usr/bin:/bin"]
    assert sorted(means.descriptors) == [0, 1, 2]
    assert os.path.samestat(os.fstat(means.workdir), tmp_path.stat())
    os.write(means.descriptors[1], b"out")
    means.close()
    scene.desk.release(caller)
    caller.exit(141)
    assert finish(process) == (141, b"out", b"")


def test_a_folder_that_is_not_there_outside_keeps_the_program_inside(scene: Scene) -> None:
    with scene.connect() as stream:
        caller, _ = scene.ask(stream, {**REQUEST, "workdir": "/no/such/folder"})
        assert collected(scene, caller) == [None]
        scene.desk.release(caller)
        caller.run()
        assert stream.recv(100)[4:] == b'{"action":"Run"}'


def test_a_failure_to_start_leaves_the_wrapper_without_an_answer(scene: Scene) -> None:
    with scene.connect() as stream:
        caller, _ = scene.ask(stream)
        scene.desk.release(caller)
        caller.fail(2)
        assert stream.recv(100) == b""


def test_a_wrapper_that_is_killed_is_missed(scene: Scene) -> None:
    process = scene.start("/bin/x", "x")
    scene.until(lambda: scene.desk.arrived)
    process.kill()
    scene.until(lambda: scene.desk.gone)
    assert finish(process)[0] == -9


def test_a_request_may_come_in_pieces_and_be_large(scene: Scene) -> None:
    with scene.connect() as stream:
        data = frame({**REQUEST, "env": {"BIG": "v" * 480_000}})
        for piece in (data[:1], data[1:3], data[3:4], data[4:5], data[5:70_000]):
            stream.sendall(piece)
            scene.settle()
        stream.setblocking(False)
        rest = memoryview(data)[70_000:]
        while rest:
            try:
                rest = rest[stream.send(rest) :]
            except BlockingIOError:
                scene.settle()
        scene.until(lambda: scene.desk.arrived)
    scene.until(lambda: scene.desk.gone)


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
    assert len(scene.desk.arrived) == 1


@pytest.mark.parametrize("count", [1, 16, 17, 100])
def test_descriptors_nobody_asked_for_are_closed(count: int, scene: Scene) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with scene.connect() as stream:
        socket.send_fds(stream, [frame(REQUEST)], many_descriptors(count))
        assert scene.is_dropped(stream)
    assert len(os.listdir("/proc/self/fd")) == before
    assert scene.desk.arrived == []


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
        assert stream.recv(100)[4:] == b'{"action":"Escalate"}'
        if count:
            socket.send_fds(stream, [frame(message)], many_descriptors(count))
        else:
            stream.sendall(frame(message))
        scene.until(lambda: scene.desk.gone)
        assert got == []
        assert scene.is_dropped(stream)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_no_descriptors_at_all_are_fine(scene: Scene) -> None:
    with scene.connect() as stream:
        caller, _ = scene.ask(stream)
        got = collected(scene, caller)
        stream.sendall(frame({"fds": []}))
        scene.until(lambda: got)
        assert got[0] is not None
        assert got[0].descriptors == {}
        got[0].close()


def test_what_comes_unasked_later_is_the_end(scene: Scene) -> None:
    with scene.connect() as stream:
        caller, _ = scene.ask(stream)
        stream.sendall(frame({"fds": []}))
        scene.until(lambda: scene.desk.gone == [caller])


def test_descriptors_on_later_pieces_are_nobodys(scene: Scene) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with scene.connect() as stream:
        data = frame(REQUEST)
        stream.sendall(data[:1])
        scene.settle()
        socket.send_fds(stream, [data[1:6]], many_descriptors(5))
        scene.settle()
        socket.send_fds(stream, [data[6:]], many_descriptors(5))
        scene.until(lambda: scene.desk.arrived)
    scene.until(lambda: scene.desk.gone)
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
    scene.until(lambda: scene.desk.gone)
    assert len(os.listdir("/proc/self/fd")) == before


def test_silence_has_an_end(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapper_end, "PATIENCE_S", 0.05)
    with scene.connect() as silent, scene.connect() as half, scene.connect() as never:
        half.sendall(frame(REQUEST)[:-1])
        caller, _ = scene.ask(never)
        got = collected(scene, caller)
        assert scene.is_dropped(silent)
        assert scene.is_dropped(half)
        scene.until(lambda: scene.desk.gone == [caller])
        assert got == []


def test_who_waits_for_a_decision_may_wait(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapper_end, "PATIENCE_S", 0.02)
    with scene.connect() as stream:
        caller, _ = scene.ask(stream)
        deadline = time.monotonic() + 0.1
        scene.until(lambda: time.monotonic() > deadline)
        scene.desk.release(caller)
        caller.run()
        assert stream.recv(100)[4:] == b'{"action":"Run"}'


def test_many_at_once_wait_in_the_socket(scene: Scene) -> None:
    streams = [scene.connect() for _ in range(UNHEARD_AT_ONCE + 5)]
    scene.settle()
    assert not scene.source._is_watched
    for stream in streams:
        stream.sendall(frame(REQUEST))
    scene.until(lambda: len(scene.desk.arrived) == len(streams))
    for stream in streams:
        stream.close()
    scene.until(lambda: len(scene.desk.gone) == len(streams))


def test_nobody_is_brought_to_a_full_desk(scene: Scene) -> None:
    scene.desk.is_full = True
    scene.source.go_on()
    with scene.connect() as stream:
        stream.sendall(frame(REQUEST))
        scene.settle()
        assert scene.desk.arrived == []
        scene.desk.is_full = False
        scene.until(lambda: scene.desk.arrived)


def test_large_requests_of_all_together_have_a_bound(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapper_end, "HELD_BYTES", 1000)
    with scene.connect() as first, scene.connect() as second:
        caller, _ = scene.ask(first, {**REQUEST, "env": {"K": "v" * 1000}})
        second.sendall(frame(REQUEST))
        scene.settle()
        arrived = len(scene.desk.arrived)
        scene.desk.release(caller)
        caller.run()
        scene.until(lambda: len(scene.desk.arrived) == 2)
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
        scene.desk.release(caller)
        caller.run()
        assert scene.source._wrappers == set()


def test_the_end_of_the_shell_ends_the_listening(scene: Scene) -> None:
    with scene.connect() as stream:
        scene.socket.close()
        scene.ask(stream)
        scene.settle()
        assert not scene.source._is_open


def test_requests_are_read_strictly() -> None:
    message = {**REQUEST, "more": 1, "env": {"A": "é", "\udcff": "\udcfe"}, "argv": []}
    execution, env = read_request(json.loads(json.dumps(message)))
    assert (execution.file, execution.argv, execution.workdir) == (b"/bin/x", [b""], b"/tmp")
    assert env == ["A=é".encode(), b"\xff=\xfe"]
    with pytest.raises(Refused):
        read_request(None)


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("/bin/x", b"/bin/x"),
        ("./x", b"/tmp/x"),
        ("x", b"/tmp/x"),
        (".hidden/x", b"/tmp/.hidden/x"),
        ("/bin//./x", b"/bin/x"),
        ("../usr/bin/x", b"/usr/bin/x"),
        ("", b""),
    ],
)
def test_names_of_programs_begin_at_the_folder(file: str, found: bytes) -> None:
    assert read_request({**REQUEST, "file": file})[0].file == found


def test_a_link_before_two_dots_is_followed(tmp_path: Path) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/away")
    request = {**REQUEST, "file": "link/../x", "workdir": str(tmp_path)}
    assert read_request(request)[0].file == os.path.realpath(tmp_path).encode() + b"/far/x"


def test_numbers_are_read_strictly() -> None:
    assert read_numbers({"fds": [0, 5, 1]}, 3) == [0, 5, 1]
    with pytest.raises(Refused):
        read_numbers({"fds": [0, 5]}, 3)


def test_a_shell_is_told_of_wrapper_and_socket() -> None:
    assert shell_variables(7, b"/w") == [
        b"CODEX_ESCALATE_SOCKET=7",
        b"BASH_EXEC_WRAPPER=/w",
        b"EXEC_WRAPPER=/w",
    ]
