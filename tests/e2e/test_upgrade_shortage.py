"""An upgrade of a server that has hardly a descriptor left: it comes to it or not, and all goes on."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from execserver.audit.reading import records, verify
from tests.support.proc import descriptor_count
from tests.support.running import outcome, start, write
from tests.support.server_process import ServerProcess
from tests.support.upgrades import upgrade

SHORTAGE = "Too many open files"


@pytest.mark.parametrize("left", [0, 1, 2, 3, 6, 24])
def test_too_few_descriptors_end_nothing(left: int, tmp_path: Path) -> None:
    with ServerProcess(options=("--audit", str(tmp_path / "log"))) as server, server.connect() as peer:
        peer.open_session()
        start(peer, "p", "cat", pipeStdin=True)
        start(peer, "t", "cat", tty=True)
        # Where numbers are left out, as many are beyond the limit, and free below it.
        most = descriptor_count(server.pid) + left
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (most, most))
        done = upgrade(server)
        if done.returncode:
            assert SHORTAGE in done.stderr
            assert SHORTAGE in server.errors()
        assert left < 24 or done.returncode == 0
        assert server.process.poll() is None
        assert "Traceback" not in server.errors()
        assert write(peer, "p", b"still here\n", "w") == "accepted"
        peer.call("process/closeStdin", {"processId": "p"})
        assert outcome(peer, "p").stdout == b"still here\n"
        assert write(peer, "t", b"\x04", "w") == "accepted"
        assert outcome(peer, "t").exit_code == 0
    verify(str(tmp_path / "log"))
    events = [record["event"] for record in records(str(tmp_path / "log"))]
    assert events.count("begin") == (1 if done.returncode else 2)
    assert events.count("exit") == 2
