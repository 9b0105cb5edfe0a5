"""The reference's shell tool beside ours: the same sessions, the same answers but for a table of differences.

Played are the recorded sessions, each on a server of its own: on the reference's server with its patched Bash
and its sandbox helper, on ours with any Bash, where the kernel tells of programs, and on ours where it does
not, with the patched Bash.  Servers and wrappers are then mixed: each must serve the other's.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from execserver.mcp.interception import _make_wrapper
from tests.helpers.wrapper_process import NO_ANSWER, finish
from tests.mcp.recorded_differences import KNOWN
from tests.mcp.replaying import FLAGS, FOLDER, OTHER_RULES, RULES, SCRIPT, Machine
from tests.mcp.test_recorded_sessions import outcome, same
from tests.reference.install import ReferenceMissing, ShellTool, shell_tool
from tests.reference.shell_tools import Kind, KindOfServer, kinds
from tests.support.wrapper_peer import WrapperPeer, frame

SESSIONS = sorted(path.stem for path in FOLDER.glob("*.jsonl"))

# The session's own server had a wrapper that said something else.
FOREIGN_WRAPPER = "server-with-foreign-wrapper"

# Where ours with the wrapper comes out otherwise than ours with notification: session -> why, and the outcome
# (None: as recorded).
WRAPPED: dict[str, tuple[str, str | None]] = {
    "escalated-argv0": (
        "the patched Bash loses the argv[0] of `exec -a`, and outside a program without one hears its path",
        "/usr/bin/cat /proc/self/cmdline ",
    ),
    "allowed-has-no-sandbox-marks": (
        "the limits this test runs the server under stay on what it starts",
        "NoNewPrivs:\t1\nSeccomp:\t2\n" * 2,
    ),
}
# It leaves a tenth of a second for all that is started in it: no test of ours on a machine in use.
TOO_TIGHT = "elapsed-adds-up-over-prompts"

# One of each kind of answer, of size, and of what goes wrong.
MIXED = (
    *("allowed-runs-outside", "big-env", "escalated-cwd-and-args", "escalated-exit-code", "forbidden"),
    *("escalated-pipes-and-redirects", "many-execs-in-parallel", "prompt-accept", "prompt-decline"),
    *("prompts-in-parallel", "unmatched-runs-inside", "exit-codes"),
)


@pytest.fixture(scope="module")
def tool() -> ShellTool:
    """The programs of the reference."""
    try:
        return shell_tool()
    except ReferenceMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Folders outside of /tmp, with the rules of the session."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    made = Machine(folder)
    made.make(OTHER_RULES.get(request.node.callspec.params["session"], {"default.rules": RULES}))
    yield made
    shutil.rmtree(folder)


def as_expected(kind: str, session: str, recorded: dict[str, Any], seen: dict[str, Any]) -> bool:
    """Tell whether an answer is the recorded one, or stands in the tables of differences."""
    wanted, found = outcome(session, recorded), outcome(session, seen)
    if wanted == found:
        return kind == "reference" or session not in KNOWN or session in WRAPPED or recorded == seen
    if kind == "reference":
        return session == FOREIGN_WRAPPER
    if kind == "wrapped" and session in WRAPPED:
        return found == WRAPPED[session][1]
    return same(session, recorded, seen)


def unexpected(kind: Kind, session: str, machine: Machine, *flags: str) -> tuple[list[str], int, str]:
    """Play a session; return what is in no table, and how the server ended."""
    server = KindOfServer(kind, machine, (*FLAGS.get(session, ()), *flags))
    try:
        found = [
            f"recorded {json.dumps(recorded)}\n     seen {json.dumps(seen)}"
            for recorded, seen in kind.play(session, machine, server)
            if not as_expected(kind.name, session, recorded, seen)
        ]
    finally:
        status, errors = server.close()
    return found, status, errors


@pytest.mark.parametrize(
    ("kind", "session"),
    [
        *(("reference", session) for session in SESSIONS),
        *(
            (kind, session)
            for kind in ("notified", "wrapped")
            for session in SESSIONS
            if session != TOO_TIGHT
        ),
    ],
)
def test_every_shell_tool_answers_the_same(
    kind: str, session: str, tool: ShellTool, machine: Machine
) -> None:
    found, status, errors = unexpected(kinds(tool)[kind], session, machine)
    assert found == []
    assert status == (session == "request-before-initialize")
    assert kind == "reference" or status or errors == ""


@pytest.mark.parametrize("session", MIXED)
def test_our_wrapper_serves_the_references_server_in_its_sandbox(
    session: str, tool: ShellTool, machine: Machine
) -> None:
    wrapper = _make_wrapper(str(machine.root), str(SCRIPT))
    found, status, _ = unexpected(kinds(tool)["reference"], session, machine, "--execve", wrapper)
    assert (found, status) == ([], 0)


@pytest.mark.parametrize("session", MIXED)
def test_the_references_wrapper_serves_our_server_in_our_sandbox(
    session: str, tool: ShellTool, machine: Machine
) -> None:
    flags = ("--execve", str(tool.wrapper))
    assert unexpected(kinds(tool)["wrapped"], session, machine, *flags) == ([], 0, "")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"action": {"Deny": {"reason": "it is late"}}}, "Execution denied: it is late\n"),
        ({"action": {"Deny": {}}}, "Execution denied\n"),
        (b"", f"{NO_ANSWER}socket closed while receiving frame header\n"),
        (b"\x05\0", f"{NO_ANSWER}socket closed while receiving frame header\n"),
        (b"\x05\0\0\0ab", f"{NO_ANSWER}socket closed while receiving frame payload\n"),
        (frame(b"{"), f"{NO_ANSWER}EOF while parsing an object at line 1 column 1\n"),
        (
            {"action": "Bogus"},
            f"{NO_ANSWER}unknown variant `Bogus`, expected one of `Run`, `Escalate`, `Deny`",
        ),
        ({}, f"{NO_ANSWER}missing field `action`"),
    ],
)
def test_the_references_wrapper_says_what_ours_says(answer: object, text: str, tool: ShellTool) -> None:
    with WrapperPeer() as peer:
        process = peer.start([tool.wrapper], "/bin/echo", "echo", "ran")
        session = peer.accept()
        session.stream.sendall(answer if isinstance(answer, bytes) else frame(answer))
        session.close()
        status, out, errors = finish(process)
    # It tells a place where there is none to be told.
    assert (status, out) == (1, b"")
    assert errors.startswith(text)
