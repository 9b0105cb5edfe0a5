"""Clients of earlier contracts: `command/exec*`, plain paths, writes without id."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Connect, StartServer
from tests.support.accounts import own_cache
from tests.support.peer import Json, Peer, RemoteError
from tests.support.running import PATH, run, start, start_params, take_where, terminate
from tests.support.server_process import base_environment
from tests.support.ws_peer import WsPeer

ours_only = pytest.mark.ours_only("the target has left these behind")


def command_exec(peer: Peer, script: str, process_id: str = "p", **members: Json) -> Json:
    params = {"processId": process_id, "argv": ["sh", "-c", script], "cwd": "/", "env": PATH, "tty": False}
    return peer.call("command/exec", params | members)


def about(peer: Peer, process_id: str = "p") -> Iterator[tuple[str, Json]]:
    """Yield the notifications about a process until it has exited."""
    method = ""
    while method != "command/exec/exited":
        message = take_where(
            peer,
            lambda message: "method" in message and message["params"]["processId"] == process_id,
        )
        method = message["method"]
        yield method, message["params"]


def collect(peer: Peer, process_id: str = "p") -> tuple[dict[str, bytes], int]:
    """Return the output of each stream and the exit code."""
    streams: dict[str, bytes] = {}
    code = -1
    for method, params in about(peer, process_id):
        if method == "command/exec/exited":
            assert params.keys() == {"processId", "exitCode"}
            code = params["exitCode"]
        else:
            assert method == "command/exec/outputDelta"
            assert params.keys() == {"processId", "stream", "chunk"}
            data = base64.b64decode(params["chunk"])
            streams[params["stream"]] = streams.get(params["stream"], b"") + data
    return streams, code


def exec_write(peer: Peer, data: bytes) -> Json:
    chunk = base64.b64encode(data).decode()
    return peer.call("command/exec/write", {"processId": "p", "chunk": chunk})


@ours_only
class TestCommandExec:
    """The first contract."""

    def test_a_command_runs_and_reports(self, peer: WsPeer) -> None:
        result = command_exec(peer, "printf out; printf err >&2; exit 3")
        assert result == {"processId": "p", "running": True, "exitCode": None, "stdout": None, "stderr": None}
        assert collect(peer) == ({"stdout": b"out", "stderr": b"err"}, 3)

    @pytest.mark.parametrize("cap", [0, 1, 100_000, 1_000_000])
    def test_output_beyond_the_cap_is_left_out(self, peer: WsPeer, cap: int) -> None:
        size = 200_000
        command_exec(peer, f"head -c {size} /dev/zero; head -c 5 /dev/zero >&2; exit 3", outputBytesCap=cap)
        streams, code = collect(peer)
        assert {name: len(data) for name, data in streams.items() if data} == {
            name: min(cap, wanted) for name, wanted in (("stdout", size), ("stderr", 5)) if cap
        }
        assert code == 3

    def test_a_terminal_takes_input(self, peer: WsPeer) -> None:
        command_exec(peer, "read line; echo got $line", tty=True)
        assert exec_write(peer, b"typed\n") == {"accepted": True}
        assert collect(peer) == ({"pty": b"typed\r\ngot typed\r\n"}, 0)

    def test_pipes_take_none(self, peer: WsPeer) -> None:
        command_exec(peer, "cat; exec sleep 100")
        with pytest.raises(RemoteError, match=r"^-32600: stdin is closed for process p$"):
            exec_write(peer, b"x")
        assert peer.call("command/exec/terminate", {"processId": "p"}) == {"running": True}

    def test_terminate_kills(self, peer: WsPeer) -> None:
        command_exec(peer, "trap '' TERM; sleep 100")
        assert peer.call("command/exec/terminate", {"processId": "p"}) == {"running": True}
        assert collect(peer)[1] in (-1, 137)
        assert peer.call("command/exec/terminate", {"processId": "p"}) == {"running": False}
        assert peer.call("command/exec/terminate", {"processId": "nobody"}) == {"running": False}

    def test_nobody_can_be_written_to(self, peer: WsPeer) -> None:
        with pytest.raises(RemoteError, match=r"^-32600: unknown process id p$"):
            exec_write(peer, b"x")

    def test_it_shares_ids_with_newer_processes(self, peer: WsPeer) -> None:
        command_exec(peer, "exec sleep 100")
        with pytest.raises(RemoteError, match=r"^-32600: process p already exists$"):
            start(peer, "p", "exit 0")
        assert terminate(peer, "p")

    def test_what_cannot_be_started_is_refused(self, peer: WsPeer) -> None:
        with pytest.raises(RemoteError, match=r"^-32602: argv must not be empty$"):
            command_exec(peer, "", argv=[])
        with pytest.raises(RemoteError, match="No such file or directory"):
            command_exec(peer, "", argv=["/nowhere"])

    def test_each_process_is_told_of_in_its_own_words(self, peer: WsPeer) -> None:
        command_exec(peer, "echo old", "old")
        assert run(peer, "new", "echo new").stdout == b"new\n"
        assert collect(peer, "old") == ({"stdout": b"old\n"}, 0)


@pytest.mark.parametrize("form", [str, Path.as_uri], ids=["plain", "uri"])
def test_folders_and_files_may_be_named_either_way(peer: WsPeer, tmp_path: Path, form: object) -> None:
    assert callable(form)
    (tmp_path / "f").write_bytes(b"x")
    assert run(peer, "p", "pwd -P", cwd=form(tmp_path)).stdout.decode() == f"{tmp_path.resolve()}\n"
    assert peer.call("fs/readFile", {"path": form(tmp_path / "f")})["dataBase64"] == "eA=="


def test_a_tilde_is_the_home_of_the_server(
    start_server: StartServer, connect: Connect, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"x")
    peer = connect(start_server(env=base_environment() | own_cache() | {"HOME": str(tmp_path)}))
    peer.open_session()
    assert peer.call("fs/readFile", {"path": "~/f"})["dataBase64"] == "eA=="
    assert run(peer, "p", "pwd -P", cwd="~").stdout.decode() == f"{os.path.realpath(tmp_path)}\n"


@ours_only
def test_a_write_needs_no_id(peer: WsPeer) -> None:
    peer.call("process/start", start_params("p", ["head", "-c", "4"], pipeStdin=True))
    params = {"processId": "p", "chunk": base64.b64encode(b"ab").decode()}
    for _ in range(2):
        assert peer.call("process/write", params) == {"status": "accepted"}
    output = b""
    while len(output) < 4:
        output += base64.b64decode(peer.notification("process/output")["chunk"])
    assert output == b"abab"
