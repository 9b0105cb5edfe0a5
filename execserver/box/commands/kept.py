"""Commands that go on without anybody connected: how long, under which name, and how to find one again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from execserver import spans
from execserver.box.commands.signalled import status_of
from execserver.box.connecting import Box, asking, unreachable
from execserver.box.shown import shown
from execserver.leaving import Leave, failure

if TYPE_CHECKING:
    from execserver.client.client import ExecServerClient
    from execserver.protocol.watching import SessionProcess

DETACHED_MS: Final = 24 * 3600 * 1000
"""How long a command without a client stays if nothing else is said; the box may allow less."""
SHELL_MS: Final = 3600 * 1000
_LONGEST_MS: Final = 365 * 24 * 3600 * 1000
_NAME: Final = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}"  # compiled when it is asked for, as in `address`
_SHORTEST_ID: Final = 4


def milliseconds(text: str) -> int | None:
    """Return a span such as 90s, 15m, 8h or 7d in milliseconds; None for anything else."""
    found = spans.seconds(text)
    return None if found is None else min(found * 1000, _LONGEST_MS)


def is_process_name(text: str) -> bool:
    """Return whether a text can name a command."""
    return re.fullmatch(_NAME, text) is not None


def require(client: ExecServerClient, box: Box) -> None:
    """Raise Leave unless the box keeps sessions, and can be reached again."""
    if not box.can_resume:
        cure = "let a server listen there (`execserver --listen URL`), and use its URL"
        if box.is_private:
            cure = "name a box before everything else, or in EXECSERVER_BOX; or " + cure
        raise unreachable(
            f"{shown(box.name, 200)}: nothing goes on there once its connection has ended", cure
        )
    if not client.extensions.kept_sessions:
        raise unreachable(
            f"{shown(box.name, 200)}: this server keeps no sessions", "use a newer execserver there"
        )


def processes(client: ExecServerClient, box: Box) -> list[SessionProcess]:
    """Return what runs, or has run, in the sessions of this person, oldest first.  Raises Leave."""
    require(client, box)
    with asking(box):
        found = client.session_processes()
    return sorted(found, key=lambda each: each.started_at_ms)


def find(client: ExecServerClient, box: Box, name: str) -> SessionProcess:
    """Return the process of a name, the running or else the latest one, or of an id.  Raises Leave."""
    known = processes(client, box)
    named = [each for each in known if each.process_name == name]
    running = [each for each in named if each.running]
    if named:
        return (running or named)[-1]
    begun = [each for each in known if len(name) >= _SHORTEST_ID and each.process_id.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    shown_name = shown(name, 100)
    why = f"several ids begin with {shown_name}" if begun else f"there is no command {shown_name}"
    raise failure(f"{shown(box.name, 200)}: {why}", "`execserver ps` shows those there are")


def short_name(process: SessionProcess) -> str:
    """Return what a person calls a process."""
    return shown(process.process_name or process.process_id[:8], 64)


def has_ended(process: SessionProcess) -> Leave:
    """Return the Leave for a process that can be asked for nothing any more."""
    code = status_of(process)
    status = "" if code is None else f" with status {code}"
    return failure(f"{short_name(process)} has ended{status}", "`execserver logs` shows what it printed")
