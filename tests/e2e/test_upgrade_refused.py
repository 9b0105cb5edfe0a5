"""What does not come to an upgrade: the server goes on as it was, and says why; nothing planted ever runs."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.audit.reading import records
from execserver.handover.records import STATE_VERSION
from execserver.runtime_paths import UPGRADE_SOCKET
from tests.support.peer import RemoteError
from tests.support.running import outcome, start, write
from tests.support.sandboxes import read_only
from tests.support.server_process import ServerProcess, base_environment
from tests.support.upgrades import (
    AGREEMENT,
    OTHER_UID,
    VERB,
    need_root,
    no_new_privileges,
    planted_program,
    program,
    program_that_cannot_run,
    refused,
    silent_program,
    upgraded,
)
from tests.support.ws_peer import WsPeer


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "log"


@pytest.fixture(scope="module")
def server(audit: Path) -> Iterator[ServerProcess]:
    """One server for all: none of them changes it."""
    with ServerProcess(options=("--audit", str(audit))) as running:
        yield running


@pytest.fixture
def peer(server: ServerProcess) -> Iterator[WsPeer]:
    """A connection with a process, which both go on."""
    connection = server.connect()
    connection.open_session()
    start(connection, "p", "cat", pipeStdin=True)
    yield connection
    assert write(connection, "p", b"still here\n", "w") == "accepted"
    connection.call("process/closeStdin", {"processId": "p"})
    assert outcome(connection, "p").stdout == b"still here\n"
    connection.close()


Scene = tuple[ServerProcess, WsPeer, Path]


@pytest.fixture
def scene(server: ServerProcess, peer: WsPeer, tmp_path: Path) -> Scene:
    return server, peer, tmp_path


def test_a_program_that_says_nothing_or_something_else(scene: Scene, audit: Path) -> None:
    server, _, folder = scene
    file = program(folder / "new", "echo unknown option >&2", agrees=False)
    assert f"{file} cannot take over: unknown option" in refused(server, str(file))
    assert "cannot take over: it said nothing" in refused(server, str(silent_program(folder / "silent")))
    told = [record for record in records(str(audit)) if record["event"] == "upgrade-refused"]
    assert (told[0]["to"], told[0]["why"]) == (str(file), f"{file} cannot take over: unknown option")


def test_a_program_that_reads_another_version_of_the_state(scene: Scene) -> None:
    server, _, folder = scene
    real = program(folder / "new")
    text = real.read_text().replace('if [ "$1"', 'set -- "$@"; if [ "$1"')
    real.write_text(text.replace(f'echo "{AGREEMENT}"', 'echo "execserver resumes 1"'))
    assert "cannot take over: execserver resumes 1" in refused(server, str(real))
    asked = subprocess.run(
        [*VERB[:-1], "--execserver-can-resume", "999"],
        capture_output=True,
        text=True,
        env=base_environment(),
        check=False,
        timeout=50,
    )
    assert (asked.returncode, asked.stderr) == (
        1,
        f"Error: this program reads version {STATE_VERSION} of a server's state, not 999\n",
    )


def test_a_file_that_others_can_write_or_that_is_none(scene: Scene) -> None:
    server, _, folder = scene
    file = program(folder / "new", f"touch {folder}/ran")
    file.chmod(0o775)
    assert f"{file} can be written by others (mode 0775)" in refused(server, str(file))
    file.chmod(0o644)
    assert f"{file} is not executable" in refused(server, str(file))
    assert f"{folder} is no file" in refused(server, str(folder))
    os.mkfifo(folder / "fifo", 0o700)
    assert "fifo is no file" in refused(server, str(folder / "fifo"))
    assert "No such file or directory" in refused(server, str(folder / "missing"))
    assert not (folder / "ran").exists()


def test_a_file_of_another_user(scene: Scene) -> None:
    need_root()
    server, _, folder = scene
    file = program(folder / "new", f"touch {folder}/ran")
    os.chown(file, OTHER_UID, OTHER_UID)
    assert f"{file} belongs to another user" in refused(server, str(file))
    assert not (folder / "ran").exists()


def test_a_file_that_is_written_to_while_it_is_looked_at(scene: Scene) -> None:
    server, _, folder = scene
    file = folder / "new"
    program(file, f"echo '#' >> {file}")
    assert f"{file} was changed while it was looked at" in refused(server, str(file))


def test_an_exec_that_fails_after_all(scene: Scene) -> None:
    """The interpreter is gone by then; the server has packed everything, and goes on."""
    server, _, folder = scene
    file = program_that_cannot_run(folder)
    assert f"{file} cannot be executed: No such file or directory" in refused(server, str(file))
    assert "cannot be read" not in refused(server, str(program(folder / "other", agrees=False)))


def test_a_file_that_another_one_takes_the_place_of_meanwhile(scene: Scene) -> None:
    server, _, folder = scene
    planted = planted_program(folder / "planted")
    file = program(folder / "new", f"mv {planted} {folder}/new")
    assert f"{file} was changed while it was looked at" in refused(server, str(file))
    assert not (folder / "ran").exists()


def test_a_name_that_leads_elsewhere_meanwhile(tmp_path: Path) -> None:
    """What was looked at is what runs."""
    planted = planted_program(tmp_path / "planted")
    link = tmp_path / "link"
    link.symlink_to(program(tmp_path / "new", f"ln -sfn {planted} {link}"))
    with ServerProcess() as server, server.connect() as peer:
        peer.open_session()
        start(peer, "p", "cat", pipeStdin=True)
        upgraded(server, str(link))
        assert link.readlink() == planted
        assert not (tmp_path / "ran").exists()
        assert write(peer, "p", b"still here\n", "w") == "accepted"
        peer.call("process/closeStdin", {"processId": "p"})
        assert outcome(peer, "p").stdout == b"still here\n"


def test_nobody_asks_from_a_sandbox(scene: Scene) -> None:
    server, _, folder = scene
    file = program(folder / "new", f"touch {folder}/ran")
    assert "from inside a sandbox" in refused(server, str(file), before=no_new_privileges)
    assert not (folder / "ran").exists()


def asking(server: ServerProcess) -> list[str]:
    """Return a command that asks the server to upgrade, and prints the answer."""
    code = (
        "import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET);"
        f"s.connect({UPGRADE_SOCKET % server.pid!r}); s.send(b'{{}}'); print(s.recv(4096).decode())"
    )
    return ["/usr/bin/python3", "-I", "-c", code]


@pytest.mark.parametrize("namespace", ["isolate", "inherit"])
def test_no_sandboxed_command_upgrades_the_server(tmp_path: Path, namespace: str) -> None:
    """With the network, so that it comes to the socket at all."""
    options = ("--linux-sandbox-pid-namespace", namespace, "--upgrade-on-hup", "--log-level", "info")
    with ServerProcess(options=options) as server, server.connect() as peer:
        peer.open_session()
        sandbox = read_only(tmp_path, network="enabled")
        try:
            start(peer, "p", asking(server), sandbox=sandbox)
        except RemoteError as error:
            pytest.skip(f"no sandbox for this policy here: {error}")
        asked = outcome(peer, "p")
        start(peer, "q", ["kill", "-HUP", str(server.pid)], sandbox=sandbox)
        assert outcome(peer, "q").exit_code != 0
        assert b"it is asked from inside a sandbox" in asked.stdout, asked
        assert "upgrading to" not in server.errors()


HOLDS = (
    "import os, socket, sys\nheld = []\n"
    "for _ in range(8):\n"
    "    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]); held.append(s)\n"
    "print('held', flush=True)\ninput()\n"
)


def test_who_may_not_ask_keeps_nobody_out_who_may(scene: Scene) -> None:
    """By connections on which nothing is said; the server waits for a request in all places that it has."""
    server, _, folder = scene
    words = ["/usr/bin/python3", "-I", "-c", HOLDS.replace("sys.argv[1]", repr(UPGRADE_SOCKET % server.pid))]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=no_new_privileges
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        (folder / "silent").write_text("#!/bin/true\n")
        (folder / "silent").chmod(0o755)
        assert "cannot take over: it said nothing" in refused(server, str(folder / "silent"))
        holder.communicate(b"\n", timeout=30)


def test_who_asks_on_and_on_fills_no_log(scene: Scene, audit: Path) -> None:
    server, _, _ = scene

    def told() -> list[str]:
        found = [record for record in records(str(audit)) if record["event"] == "upgrade-refused"]
        return [str(record["why"]) for record in found if "inside a sandbox" in str(record["why"])]

    before, began = len(told()), time.monotonic()
    flood = (
        "import socket\nfor _ in range(400):\n"
        "    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        f"    s.connect({UPGRADE_SOCKET % server.pid!r}); s.send(b'{{}}'); s.recv(4096); s.close()\n"
    )
    subprocess.run(
        ["/usr/bin/python3", "-I", "-c", flood], check=True, timeout=50, preexec_fn=no_new_privileges
    )
    assert len(told()) - before <= time.monotonic() - began + 2


def test_another_user_cannot_ask(scene: Scene) -> None:
    need_root()
    server, _, _ = scene
    said = subprocess.run(
        asking(server),
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
        user=OTHER_UID,
        group=OTHER_UID,
        extra_groups=[],
    )
    assert said.stdout == '{"refused":"only the user of the server, and root, may upgrade it"}\n'


def test_requests_that_are_none_and_those_that_never_come(scene: Scene) -> None:
    server, _, _ = scene
    for message in (b"{", b'{"file": 3}', b'{"file": "/bin/true"}', b"x" * 9000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(30)
            sock.connect(UPGRADE_SOCKET % server.pid)
            sock.send(message)
            assert sock.recv(4096) == b'{"refused":"the request is none"}'
