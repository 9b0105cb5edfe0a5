"""The reference's recorded sessions, played against this server as a process of its own.

In a short run the sessions share a server where they can, and those that are mostly waiting are left out;
in a long run all have one of their own, too.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.recorded_differences import KNOWN, OTHER_ORDER, without_machine
from tests.mcp.replaying import FLAGS, FOLDER, OTHER_RULES, RULES, Machine, Replay, Server
from tests.support.accounts import account

# How often it asks before its time is up depends on how fast a machine starts shells.  What it shows is
# tested with a clock that is moved by hand (`test_stopwatch.py`).
NOT_PLAYED = {"elapsed-adds-up-over-prompts"}
SESSIONS = sorted(path.stem for path in FOLDER.glob("*.jsonl") if path.stem not in NOT_PLAYED)
# They need a server that nobody has talked to, or leave none behind.
ALONE = {
    *("eof-ends-server", "eof-while-running", "malformed-line-ends-server", "no-state-needs-helper"),
    *("request-before-initialize", *OTHER_RULES),
}
WAITING = {
    *("many-execs", "output-stdout-then-stderr", "ping-during-call"),
    *("timeout-default-10s", "timeout-kills-descendants", "timeout-resumes-after-prompt"),
}


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def shared(root: Path) -> Iterator[tuple[Machine, Server]]:
    machine = Machine(root / "shared")
    machine.make({"default.rules": RULES})
    server = Server(machine)
    yield machine, server
    assert server.close() == (0, "")


def outcome(session: str, message: dict[str, Any]) -> object:
    """Return what is compared of a message: a call's output or error as text, of all else the whole."""
    if "error" in message and "data" not in message["error"]:
        return without_machine(session, f"error: {message['error']['message']}")
    content = message.get("result", {}).get("content") if "result" in message else None
    return without_machine(session, content[0]["output"]) if content else message


def same(session: str, recorded: dict[str, Any], seen: dict[str, Any]) -> bool:
    """Tell whether a message came as recorded, or as the table of differences has it."""
    wanted, found = outcome(session, recorded), outcome(session, seen)
    if session in KNOWN and isinstance(wanted, str):
        ours = {without_machine(session, key): value for key, value in KNOWN[session].ours.items()}
        wanted = ours.get(wanted, wanted)
    if wanted == found or not (isinstance(wanted, str) and isinstance(found, str)):
        return wanted == found
    # By characters: a message that a program writes in pieces may be cut where the other stream is read.
    return session in OTHER_ORDER and sorted(wanted) == sorted(found)


OF_A_NAME = ("matching-is-by-program-name", "preserve-program-paths")  # run `id -un` and `whoami`


def unexpected(session: str, machine: Machine, server: Server) -> list[str]:
    if session in OF_A_NAME and account() is None:
        pytest.skip("the user of the tests has no name")
    places = machine.places(machine.workdir(session))
    return [
        f"recorded {json.dumps(each.recorded)}\n     seen {json.dumps(each.seen)}"
        for each in Replay(session, server.peer, places).play()
        if not same(session, each.recorded, each.seen)
    ]


@pytest.mark.parametrize("session", [name for name in SESSIONS if name not in ALONE | WAITING])
def test_a_session_comes_out_as_recorded_on_a_server_in_use(
    session: str, shared: tuple[Machine, Server]
) -> None:
    assert unexpected(session, *shared) == []


@pytest.mark.parametrize(
    "session",
    [pytest.param(name, marks=[] if name in ALONE else [pytest.mark.long]) for name in SESSIONS],
)
def test_a_session_comes_out_as_recorded_on_its_own_server(session: str, root: Path) -> None:
    machine = Machine(root / session)
    machine.make(OTHER_RULES.get(session, {"default.rules": RULES}))
    server = Server(machine, FLAGS.get(session, ()))
    try:
        assert unexpected(session, machine, server) == []
    finally:
        status, errors = server.close()
    if session == "request-before-initialize":
        assert status == 1
        assert errors.startswith("Error: expect initialized request, but received: ")
    else:
        assert (status, errors) == (0, "")


def test_the_table_of_differences_names_sessions_that_exist() -> None:
    assert {*KNOWN, *OTHER_ORDER, *ALONE, *WAITING} <= set(SESSIONS)
    assert len(SESSIONS) == 78
