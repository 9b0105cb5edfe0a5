"""The thin line through everything: one process and one file, over both carriers."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.peer import Peer
from tests.support.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["ws", "stdio"])
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    """A connection to a fresh server of ours."""
    over_stdio = request.param == "stdio"
    with ServerProcess(listen="stdio" if over_stdio else "ws://127.0.0.1:0", cwd=ROOT) as server:
        with server.stdio() if over_stdio else server.connect() as connection:
            if over_stdio:
                server.close_stdin()
            yield connection
        if over_stdio:
            assert server.wait() == 0, server.errors()


def test_a_process_runs_and_its_output_exit_and_close_arrive(peer: Peer, tmp_path: Path) -> None:
    peer.open_session()
    start = {
        "processId": "p",
        "argv": ["sh", "-c", "printf out; exit 3"],
        "cwd": tmp_path.as_uri(),
        "env": {"PATH": "/usr/bin:/bin"},
        "tty": False,
    }
    assert peer.call("process/start", start)["processId"] == "p"
    output = peer.notification("process/output")
    assert (output["processId"], output["stream"]) == ("p", "stdout")
    assert base64.b64decode(output["chunk"]) == b"out"
    exited = peer.notification("process/exited")
    assert exited["exitCode"] == 3
    closed = peer.notification("process/closed")
    assert sorted([output["seq"], exited["seq"], closed["seq"]]) == [1, 2, 3]
    assert closed["seq"] == 3
    read = peer.call("process/read", {"processId": "p"})
    assert [chunk["chunk"] for chunk in read["chunks"]] == [output["chunk"]]
    assert (read["exited"], read["exitCode"], read["closed"], read["nextSeq"]) == (True, 3, True, 4)


def test_a_file_is_written_and_read_back(peer: Peer, tmp_path: Path) -> None:
    peer.open_session()
    path = (tmp_path / "f").as_uri()
    data = base64.b64encode(b"\x00\xffdata").decode()
    assert peer.call("fs/writeFile", {"path": path, "dataBase64": data}) == {}
    assert peer.call("fs/readFile", {"path": path}) == {"dataBase64": data}
    assert (tmp_path / "f").read_bytes() == b"\x00\xffdata"
