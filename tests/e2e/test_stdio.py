"""The stdio carrier: a line a message, and an end that loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, StartServer
from tests.support.feed import bytewise
from tests.support.peer import encode
from tests.support.proc import marked
from tests.support.running import PATH, run, start
from tests.support.server_process import Flavour, ServerProcess, base_environment
from tests.support.stdio_peer import StdioPeer
from tests.support.waiting import wait_until

HELLO = {"id": 1, "method": "initialize", "params": {"clientName": "c"}}
READY = {"method": "initialized"}
UNKNOWN = {"id": 2, "method": "no/such"}
QUIET = 0.3
loses_answers = pytest.mark.ours_only("at the end of input the reference may lose answers")


@pytest.fixture
def stdio_server(start_server: StartServer) -> ServerProcess:
    """A server on pipes."""
    return start_server(listen="stdio")


@pytest.fixture
def peer(stdio_server: ServerProcess) -> Iterator[StdioPeer]:
    """The one connection to it, with the only write end of its input."""
    connection = stdio_server.stdio()
    with connection:
        stdio_server.close_stdin()
        yield connection


def lines(*messages: object) -> bytes:
    return b"".join(encode(message) + b"\n" for message in messages)


def feed_file(flavour: Flavour, path: Path) -> subprocess.CompletedProcess[bytes]:
    """Run a server whose stdin is a file to its end."""
    argv = [*flavour.argv, "--listen", "stdio"]
    env = base_environment() | flavour.env
    with path.open("rb") as stdin:
        return subprocess.run(
            argv, stdin=stdin, capture_output=True, env=env, cwd=ROOT, timeout=30, check=False
        )


def test_lines_are_messages_however_they_are_cut(stdio_server: ServerProcess) -> None:
    peer = stdio_server.stdio(bytewise)
    with peer:
        peer.send_raw(lines(HELLO, READY, UNKNOWN))
        assert "sessionId" in peer.take({"id": 1})["result"]
        assert peer.take({"id": 2})["error"]["code"] == -32601


def test_blank_lines_are_skipped(peer: StdioPeer) -> None:
    peer.send_raw(b"\n  \t\r\n" + lines(HELLO) + b"\n\n" + lines(UNKNOWN))
    assert [(peer.receive() or {})["id"] for _ in range(2)] == [1, 2]


def test_a_malformed_line_is_answered_and_harms_nothing(peer: StdioPeer) -> None:
    peer.send_text("{")
    error = peer.take({"id": -1})["error"]
    assert error["code"] == -32600
    assert error["message"] == (
        "failed to parse JSON-RPC message from exec-server stdio: "
        "EOF while parsing an object at line 1 column 1"
    )
    assert peer.open_session()


def test_processes_run_as_over_a_websocket(peer: StdioPeer) -> None:
    peer.open_session()
    result = run(peer, "p", "printf out; printf err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == (b"out", b"err", 3)


def test_the_end_of_input_ends_the_server(stdio_server: ServerProcess, peer: StdioPeer) -> None:
    peer.open_session()
    peer.close_input()
    assert stdio_server.wait() == 0
    assert peer.receive() is None


@loses_answers
def test_what_was_asked_before_the_end_of_input_is_answered(
    stdio_server: ServerProcess, peer: StdioPeer, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(bytes(1_000_000))
    read_file = {"id": 3, "method": "fs/readFile", "params": {"path": str(tmp_path / "f")}}
    peer.send_raw(lines(HELLO, READY, *[UNKNOWN] * 300, read_file) + encode(UNKNOWN | {"id": 4}))
    peer.close_input()
    ids = []
    while (message := peer.receive()) is not None:
        ids.append(message["id"])
    assert ids == [1, *[2] * 300, 3, 4]
    assert stdio_server.wait() == 0


@pytest.mark.parametrize("violation", ['{"method":"bogus"}', '{"id":1,"result":{}}'])
def test_after_a_violation_nothing_is_handled_until_the_input_ends(
    stdio_server: ServerProcess, peer: StdioPeer, violation: str
) -> None:
    peer.open_session()
    peer.send_text(violation)
    with pytest.raises(subprocess.TimeoutExpired):
        stdio_server.wait(QUIET)
    peer.send(UNKNOWN)
    peer.close_input()
    assert stdio_server.wait() == 0
    assert peer.receive() is None


@loses_answers
def test_input_from_a_file_is_answered(flavour: Flavour, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(lines(HELLO, READY, *[UNKNOWN] * 100))
    done = feed_file(flavour, tmp_path / "in")
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1] + [2] * 100
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_empty_file_ends_the_server_at_once(flavour: Flavour, tmp_path: Path) -> None:
    (tmp_path / "in").touch()
    done = feed_file(flavour, tmp_path / "in")
    assert (done.returncode, done.stdout) == (0, b"")


@pytest.mark.ours_only("the reference cannot use non-blocking descriptors")
@pytest.mark.parametrize("blocking", [True, False])
def test_descriptors_are_given_back_as_they_were(flavour: Flavour, blocking: bool) -> None:
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    try:
        for descriptor in (theirs_in, theirs_out):
            os.set_blocking(descriptor, blocking)
        argv = [*flavour.argv, "--listen", "stdio"]
        with subprocess.Popen(
            argv, stdin=theirs_in, stdout=theirs_out, env=base_environment(), cwd=ROOT
        ) as server:
            os.write(ours_out, lines(HELLO))
            assert b"sessionId" in os.read(ours_in, 65_536)
            os.close(ours_out)
        assert server.returncode == 0
        assert [os.get_blocking(descriptor) for descriptor in (theirs_in, theirs_out)] == [blocking] * 2
    finally:
        for descriptor in (theirs_in, ours_in, theirs_out):
            os.close(descriptor)


@pytest.mark.ours_only("there a grandchild lives on")
@pytest.mark.parametrize(
    "command", ["exec sleep 100", "setsid sleep 100 & exec sleep 100"], ids=["one", "setsid"]
)
def test_processes_end_with_the_server(stdio_server: ServerProcess, peer: StdioPeer, command: str) -> None:
    mark = str(uuid.uuid4())
    peer.open_session()
    start(peer, "p", command, env=PATH | {"MARK": mark})
    wait_until(lambda: len(marked(mark)) == (2 if "&" in command else 1))
    peer.close_input()
    assert stdio_server.wait() == 0
    assert marked(mark) == []


@pytest.mark.ours_only("the reference stays")
def test_a_reader_that_leaves_ends_the_server(stdio_server: ServerProcess, peer: StdioPeer) -> None:
    peer.open_session()
    assert peer.output_fd is not None
    os.close(peer.output_fd)
    peer.output_fd = None
    stdio_server.process.stdout.close()  # type: ignore[union-attr]  # it is a pipe
    peer.send(UNKNOWN)
    assert stdio_server.wait() == 0


@pytest.mark.ours_only("the reference ends by the signal, and takes lines of any length")
def test_a_line_without_end_ends_the_server(start_server: StartServer) -> None:
    server = start_server(listen="stdio", settings={"max_message_bytes": 10_000})
    peer = server.stdio()
    with peer:
        peer.open_session()
        peer.send_raw(b"x" * 10_001)
        assert server.wait() == 0


@pytest.mark.ours_only("the text of the error is the decoder's")
@pytest.mark.parametrize("line", [b"\0" * 100, b"\xff\xfe{}", b'{"id":9,"method":"\xc3"}', b"{\0}"])
def test_a_line_that_is_no_text_is_answered_and_harms_nothing(peer: StdioPeer, line: bytes) -> None:
    peer.send_raw(line + b"\n")
    assert peer.take({"id": -1})["error"]["code"] == -32600
    assert peer.open_session()


@loses_answers
def test_half_a_line_at_the_end_of_input_is_answered_as_malformed(
    stdio_server: ServerProcess, peer: StdioPeer
) -> None:
    peer.send_raw(lines(HELLO) + encode(UNKNOWN)[:-5])
    peer.close_input()
    assert (peer.receive() or {})["id"] == 1
    assert (peer.receive() or {})["error"]["code"] == -32600
    assert peer.receive() is None
    assert stdio_server.wait() == 0
