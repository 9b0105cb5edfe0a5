"""How the program is started does not show in what it starts, and nothing of the machine gets into it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.one_file import Box, new_mounts
from tests.support.peer import Peer, RemoteError
from tests.support.proc import require_a_look_into, zygotes_of
from tests.support.running import run
from tests.support.server_process import Flavour, ServerProcess

pytestmark = pytest.mark.unpacked

# What a user's programs may need, and what would break ours if it were read.
GIVEN = {
    "LD_LIBRARY_PATH": "/nowhere:/usr/lib/nowhere",
    "LD_PRELOAD": "",
    "LD_BIND_NOW": "1",
    "PYTHONHOME": "/nowhere",
    "PYTHONPATH": "/nowhere",
    "PYTHONSTARTUP": "/nowhere",
    "PYTHONUTF8": "0",
    "MY_VALUE": "a=b",
}
ALL = {"inherit": "all", "ignoreDefaultExcludes": True, "exclude": [], "set": {}, "includeOnly": []}


def serve(box: Box, *interpreter: str, **variables: str) -> ServerProcess:
    flavour = Flavour("ours", (*interpreter, str(box.program)), 0)
    return ServerProcess(flavour, env={**box.variables, **variables})


def environment_of_a_child(peer: Peer) -> dict[str, str]:
    """Return what `env` prints when the server's own environment is passed on."""
    lines = run(peer, "p", ["env", "-0"], envPolicy=ALL, env={}).stdout.decode().split("\0")
    return dict(line.split("=", 1) for line in lines if line)


def test_children_see_the_environment_the_server_was_given(one_file: Box) -> None:
    with serve(one_file, **GIVEN) as server, server.connect() as peer:
        peer.open_session()
        assert environment_of_a_child(peer) == {**one_file.variables, **GIVEN}


def test_children_of_the_zipapp_see_the_environment_it_was_given(zipapp: Box) -> None:
    given = {name: value for name, value in GIVEN.items() if not name.startswith(("LD_", "PYTHONHOME"))}
    # Its first line asks for whatever `python3` is: that may be a script which sets variables of its own.
    with serve(zipapp, sys.executable, **given) as server, server.connect() as peer:
        peer.open_session()
        assert environment_of_a_child(peer) == {**zipapp.variables, **given}


def test_a_preloaded_library_is_for_children_only(one_file: Box) -> None:
    with serve(one_file, LD_PRELOAD="/nowhere/lib.so") as server:
        with server.connect() as peer:
            peer.open_session()
            assert environment_of_a_child(peer)["LD_PRELOAD"] == "/nowhere/lib.so"
        assert "LD_PRELOAD" not in server.errors()


def test_the_zygote_has_no_environment(box: Box) -> None:
    with serve(box, MY_SECRET="x") as server, server.connect() as peer:
        peer.open_session()
        (zygote,) = zygotes_of(server.pid)
        require_a_look_into(zygote)
        assert Path(f"/proc/{zygote}/environ").read_bytes().strip(b"\0") == b""


def test_processes_are_listed_under_the_programs_name(one_file: Box) -> None:
    with serve(one_file) as server, server.connect() as peer:
        peer.open_session()
        for pid in (server.pid, *zygotes_of(server.pid)):
            assert Path(f"/proc/{pid}/comm").read_text() == "execserver\n"


def mapped_files(pid: int) -> set[Path]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {Path(line.split(maxsplit=5)[5]) for line in lines if " /" in line}


OTHER_SERVICES = "passwd: compat\ngroup: compat\nhosts: compat files dns\n"


@pytest.mark.parametrize("host", ["localhost", "no-such-host.invalid"])
def test_nothing_of_the_machine_is_loaded(host: str, one_file: Box, tmp_path: Path) -> None:
    """Not for a look-up of users and hosts either: the machine's name services stay where they are."""
    (tmp_path / "nsswitch.conf").write_text(OTHER_SERVICES)
    script = 'mount --bind "$1" /etc/nsswitch.conf; exec "$2" --listen ws://127.0.0.1:0'
    words = (
        *new_mounts(),
        "sh",
        "-euc",
        script,
        "sh",
        str(tmp_path / "nsswitch.conf"),
        str(one_file.program),
    )
    with ServerProcess(Flavour("ours", words, 0), env=one_file.variables) as server, server.connect() as peer:
        peer.open_session()
        request = {"requestId": "r", "method": "GET", "url": f"http://{host}:9/", "timeoutMs": 5000}
        with pytest.raises(RemoteError):
            peer.call("http/request", request)
        strange = {path for path in mapped_files(server.pid) if not path.is_relative_to(one_file.cache)}
    assert {path for path in strange if ".so" in path.name} == set()
