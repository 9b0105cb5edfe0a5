"""`process/start` with a `shellSnapshot`: what goes on meanwhile, and every back end of the sandbox."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT
from tests.e2e.sandbox_places import Place, place_for
from tests.support.peer import Json, RemoteError
from tests.support.running import outcome, start_params
from tests.support.sandboxes import context, managed, read_only, special
from tests.support.server_process import Flavour, ServerProcess
from tests.support.ways import server_flavour
from tests.support.ws_peer import WsPeer

pytestmark = pytest.mark.ours_only("0.142.0 has no shell snapshots")

SNAPSHOT: Json = {"scopeId": "s", "shell": {"name": "bash", "path": "/bin/bash"}}
RC = "echo noise; f() { echo f:$1; }; export FROM_RC=rc\n"


def login(home: Path) -> Json:
    """Return the members of a start that has a snapshot of the start-up files in this home."""
    return {"env": {"PATH": "/usr/bin:/bin", "HOME": str(home)}, "shellSnapshot": SNAPSHOT}


def words(command: str) -> list[str]:
    return ["/bin/bash", "-lc", command]


def test_nobody_waits_for_a_capture(peer: WsPeer, tmp_path: Path) -> None:
    (tmp_path / ".bash_profile").write_text("read < go; export A=1\n")  # waits until the test writes
    os.mkfifo(tmp_path / "go")
    start = start_params("p", words("echo $A"), cwd=f"file://{tmp_path}", **login(tmp_path))
    peer.send({"id": 100, "method": "process/start", "params": start})
    with pytest.raises(RemoteError, match="process id p is starting"):
        peer.call("process/read", {"processId": "p"})
    with pytest.raises(RemoteError, match="process p already exists"):
        peer.call("process/start", start)
    with (tmp_path / "go").open("w") as go:
        go.write("\n")
    assert peer.take({"id": 100})["result"] == {"processId": "p", "sandboxType": "none"}
    assert outcome(peer, "p").stdout == b"1\n"


@contextmanager
def placed(flavour: Flavour, kind: str) -> Iterator[Place]:
    with ServerProcess(server_flavour(flavour, kind), cwd=ROOT) as server:
        connection = server.connect()
        connection.open_session()
        owner = int(Path(f"/proc/{server.pid}/status").read_text().split("Uid:")[1].split()[0])
        with place_for(connection, owner) as place:
            yield place
        connection.close()


@pytest.mark.parametrize(
    "kind", ["root", "user", "root-without-userns", "bubblewrap-user", "landlock-user", "old-kernel-user"]
)
def test_every_back_end_restores_it(flavour: Flavour, kind: str) -> None:
    with placed(flavour, kind) as place:
        place.make(".bash_profile", RC + "touch side\n")
        command, given = words("f x; echo $FROM_RC; touch here"), login(place.folder)
        for _ in range(2):
            done = place.run(command, read_only(place.ws), **given)
            assert done.stdout == b"f:x\nrc\n"
            assert b"Read-only file system" in done.stderr or b"Permission denied" in done.stderr
        # The capture was confined, too.
        assert sorted(entry.name for entry in place.ws.iterdir()) == ["f"]


def test_what_start_up_files_export_does_not_widen_the_sandbox(flavour: Flavour) -> None:
    with placed(flavour, "user") as place:
        place.make(".bash_profile", f"export TMPDIR={place.other}\n")
        sandbox = context(managed(special("root", "read"), special("tmpdir", "write")), place.ws)
        command, given = words("echo $TMPDIR; touch $TMPDIR/x"), login(place.folder)
        for _ in range(2):
            done = place.run(command, sandbox, **given)
            assert done.stdout == f"{place.other}\n".encode()
            assert done.exit_code != 0
        assert not (place.other / "x").exists()


def test_another_sandbox_has_a_snapshot_of_its_own(flavour: Flavour) -> None:
    with placed(flavour, "user") as place:
        place.make(".bash_profile", "touch side 2>/dev/null && export WROTE=yes\n")
        command, given = words("echo $WROTE"), login(place.folder)
        sandboxes: list[Json] = [None, read_only(place.ws)]
        said = [place.run(command, sandbox, **given).stdout for sandbox in sandboxes]
        assert said == [b"yes\n", b"\n"]
