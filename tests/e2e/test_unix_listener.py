"""A server on a Unix socket, known only from outside."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.client import ExecServerClient
from tests.support.server_process import OURS, ServerProcess

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path() -> Iterator[Path]:
    """A short path for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder, "s")


def test_a_session_over_a_socket_knows_its_user(path: Path) -> None:
    with ServerProcess(OURS, listen=f"unix://{path}", cwd=ROOT) as server:
        assert server.url == f"unix://{path}"
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
        peer = server.connect()
        peer.open_session()
        listed = peer.call("process/list")
        assert listed["identity"] == {"way": "uid", "name": str(os.geteuid())}
        peer.close()
    assert not path.exists()


def test_the_python_client_moves_much_over_a_socket(path: Path, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(content)
    with (
        ServerProcess(OURS, listen=f"unix://{path}", cwd=ROOT) as server,
        ExecServerClient.connect(server.url) as client,
    ):
        assert client.read_file(str(tmp_path / "file")) == content


def test_a_server_that_was_killed_leaves_a_socket_that_the_next_one_replaces(path: Path) -> None:
    killed = ServerProcess(OURS, listen=f"unix://{path}", cwd=ROOT)
    killed.kill()
    assert path.exists()
    with ServerProcess(OURS, listen=f"unix://{path}", cwd=ROOT) as server:
        server.connect().close()
