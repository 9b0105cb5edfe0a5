"""`process/start` with a `shellSnapshot`: what goes on meanwhile, and every back end of the sandbox."""

from __future__ import annotations

import os
import shutil
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


ZSHRC = r"""
echo noise
alias -g G='| grep'
alias ll='ls -l'
function anon-dash fn() { echo "fn:$1"; }
quoted() { print -r -- 'it'"'"'s' }
setopt extendedglob noclobber
autoload -Uz zmv
typeset -gxT LIST list
list=(a b)
plain=not-seen
export TWO=$'a\nb'
"""


def test_zsh_finds_its_functions_aliases_and_options(peer: WsPeer, tmp_path: Path) -> None:
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("there is no zsh here")
    (tmp_path / ".zshrc").write_text(ZSHRC)
    (tmp_path / ".zprofile").write_text("export PROFILE=p\n")
    # As an alias that zsh brings along has, in Debian's start-up files, the name of a function.
    (tmp_path / ".zlogin").write_text("alias quoted=wrong\n")
    members = {
        "env": {"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        "shellSnapshot": {"scopeId": "s", "shell": {"name": "zsh", "path": zsh}},
    }
    command = (
        "fn x; 'quoted'; echo $TWO $PROFILE $LIST \"[$plain]\" $1 $#; [[ abc == (#i)ABC ]] && echo $-\n"
        "alias ll G; whence -w zmv; setopt; exit 3"
    )
    argv = [zsh, "-lc", command, "zero", "one"]
    for number in range(2):  # captured, and found again
        peer.call("process/start", start_params(f"z{number}", argv, cwd=f"file://{tmp_path}", **members))
        done = outcome(peer, f"z{number}")
        assert done.exit_code == 3, done.stderr
        first, _, rest = done.stdout.decode().partition("] one 1\n")
        assert first == "fn:x\nit's\na\nb p a:b ["
        flags, *lines = rest.splitlines()
        assert "l" in flags
        assert lines[:3] == ["ll='ls -l'", "G='| grep'", "zmv: function"]
        assert {"extendedglob", "noclobber", "login"} <= set(lines[3:])
        assert b"failed to restore" not in done.stderr
