"""Commands that look for the keeper, its sockets, and what is written down there."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import proc
from tests.support.crashes import Follower, crash, server_of, surviving
from tests.support.peer import Json
from tests.support.sandboxes import read_only
from tests.support.server_process import OURS, ServerProcess, base_environment

WAYS: dict[str, Json] = {"pipes": {}, "terminal": {"tty": True}, "sandbox": {"sandbox": read_only(Path("/"))}}


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with surviving("--linux-sandbox-pid-namespace", "inherit") as running:
        yield running


def said(client: Follower, process_id: str, script: str, **members: Json) -> str:
    client.start(process_id, script, **members)
    client.read_all(process_id)
    return client.output(process_id, "pty" if members.get("tty") else "stdout").decode()


@pytest.mark.parametrize("way", WAYS)
def test_commands_get_nothing_of_what_is_held(server: ServerProcess, way: str) -> None:
    with Follower(server) as client:
        for process_id in ("before", "behind"):
            found = said(client, process_id, "env; cd /proc/self/fd; echo has *", **WAYS[way])
            assert "KEEPER" not in found
            (numbers,) = re.findall(r"has ([0-9 ]+)", found)
            assert set(numbers.split()) <= {"0", "1", "2", "3"}  # 3: the folder that the shell lists
            crash(server)


def test_a_sandboxed_command_that_sees_keeper_and_server_reaches_neither(server: ServerProcess) -> None:
    with Follower(server) as client:
        crash(server)
        client.call("process/list", {})
        pids = f"{server.pid} {server_of(server.pid)}"
        tries = (
            "cat /proc/$p/environ > /dev/null && echo environment;"
            " head -c 1 /proc/$p/mem && echo memory; ls /proc/$p/cwd/ && echo folder; "
            "for f in 0 1 2 3 4 5 6 7 8 9; do cat < /proc/$p/fd/$f && echo content; done; "
            "kill -STOP $p && echo signalled"
        )
        script = f"for p in {pids}; do test -d /proc/$p && echo seen; {tries}; done 2> /dev/null; echo over"
        assert said(client, "p", script, sandbox=read_only(Path("/"))) == "seen\nseen\nover\n"
        # On a busy machine one may wait for the disk just now; what counts is that it was not stopped.
        assert {proc.state(int(pid)) for pid in pids.split()} <= {"S", "R", "D"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at what a keeper has open")
def test_the_keeper_has_no_socket_with_a_name(server: ServerProcess) -> None:
    with Follower(server) as client:
        client.start("p", "sleep 1000")
        crash(server)
        client.call("process/list", {})
        targets = [os.readlink(f"/proc/{server.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{server.pid}/fd")]
        sockets = {target[8:-1] for target in targets if target.startswith("socket:[")}
        lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        own = [fields for fields in lines if fields[6] in sockets]
        assert own
        assert [fields[7] for fields in own if len(fields) > 7] == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look into any process")
def test_the_user_cannot_look_into_the_keeper(server: ServerProcess) -> None:
    for name in ("environ", "mem", "maps"):
        with pytest.raises(PermissionError):
            Path(f"/proc/{server.pid}/{name}").read_bytes()
    with pytest.raises(PermissionError):
        os.listdir(f"/proc/{server.pid}/fd")


@pytest.mark.parametrize("value", ["", "x", "0", "77"])
def test_a_planted_variable_leads_to_nothing(value: str) -> None:
    done = subprocess.run(
        [*OURS.argv, "--listen", "ws://127.0.0.1:0", "--survive-crash"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**base_environment(), "EXECSERVER_KEEPER": value},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr
