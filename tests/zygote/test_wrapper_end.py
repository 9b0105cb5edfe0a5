"""The end wrappers speak to: real wrappers, and how their requests are read."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.zygote.supervision.wrapper.messages import Refused, read_numbers, read_request
from execserver.zygote.supervision.wrapper.wrapper_end import shell_variables
from tests.support.wrapper_peer import frame
from tests.zygote.wrapper_scene import LIMIT_S, REQUEST, Scene, collected


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A scene of its own."""
    made = Scene()
    yield made
    made.close()


def finish(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, errors


def test_a_wrapper_brings_what_its_program_would_get(scene: Scene, tmp_path: Path) -> None:
    process = scene.start("./prog", "name", "-x", cwd=tmp_path)
    scene.until(lambda: scene.broker.arrived)
    caller, execution = scene.broker.arrived[0]
    folder = os.path.realpath(tmp_path).encode()
    assert (execution.file, list(execution.argv)) == (folder + b"/prog", [b"name", b"-x"])
    assert execution.workdir == folder
    scene.broker.release(caller)
    caller.deny("Execution denied: it is late")
    assert finish(process) == (1, b"", b"Execution denied: it is late\n")


def test_run_lets_the_wrapper_become_the_program(scene: Scene) -> None:
    process = scene.start("/bin/echo", "echo", "ran")
    scene.until(lambda: scene.broker.arrived)
    caller, _ = scene.broker.arrived[0]
    scene.broker.release(caller)
    caller.run()
    assert finish(process) == (0, b"ran\n", b"")


def test_escalate_brings_folder_environment_and_descriptors(scene: Scene, tmp_path: Path) -> None:
    process = scene.start("/bin/x", "x", cwd=tmp_path)
    scene.until(lambda: scene.broker.arrived)
    caller, _ = scene.broker.arrived[0]
    got = collected(scene, caller)
    scene.until(lambda: got)
    (means,) = got
    assert means is not None
    assert list(means.env) == [b"PATH=/usr/bin:/bin"]
    assert sorted(means.descriptors) == [0, 1, 2]
    assert os.path.samestat(os.fstat(means.workdir), tmp_path.stat())
    os.write(means.descriptors[1], b"out")
    means.close()
    scene.broker.release(caller)
    caller.exit(141)
    assert finish(process) == (141, b"out", b"")


def test_a_folder_that_is_not_there_outside_keeps_the_program_inside(scene: Scene) -> None:
    with scene.connect() as stream:
        caller, _ = scene.ask(stream, {**REQUEST, "workdir": "/no/such/folder"})
        assert collected(scene, caller) == [None]
        scene.broker.release(caller)
        caller.run()
        assert stream.recv(100)[4:] == b'{"action":"Run"}'


def test_a_failure_to_start_leaves_the_wrapper_without_an_answer(scene: Scene) -> None:
    with scene.connect() as stream:
        caller, _ = scene.ask(stream)
        scene.broker.release(caller)
        caller.fail(2)
        assert stream.recv(100) == b""


def test_a_wrapper_that_is_killed_is_missed(scene: Scene) -> None:
    process = scene.start("/bin/x", "x")
    scene.until(lambda: scene.broker.arrived)
    process.kill()
    scene.until(lambda: scene.broker.gone)
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
        scene.until(lambda: scene.broker.arrived)
    scene.until(lambda: scene.broker.gone)


def test_no_descriptors_at_all_are_fine(scene: Scene) -> None:
    with scene.connect() as stream:
        caller, _ = scene.ask(stream)
        got = collected(scene, caller)
        stream.sendall(frame({"fds": []}))
        scene.until(lambda: got)
        assert got[0] is not None
        assert got[0].descriptors == {}
        got[0].close()


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
