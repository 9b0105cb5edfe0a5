"""Kept sessions, and the processes in them, as operations.

Each raises `UnsupportedByServer` on a server without kept sessions, and `RequestFailed`.
"""

from __future__ import annotations

from typing import Final

from execserver.client.errors import ExecServerError, UnsupportedByServer
from execserver.client.operations.call import Operation, ask
from execserver.protocol.environment import Extensions
from execserver.protocol.own_methods import (
    PROCESS_UNWATCH,
    PROCESS_WATCH,
    SESSION_END,
    SESSION_KEEP,
    SESSION_LIST,
    SESSION_PROCESSES,
)
from execserver.protocol.session import (
    KeptSession,
    NoParams,
    SessionEndParams,
    SessionKeepParams,
    SessionListEntry,
)
from execserver.protocol.watching import (
    SessionProcess,
    UnwatchParams,
    WatchProcessParams,
    WatchProcessResponse,
)

MAX_LOSSES: Final = 20  # of one watch: a request that ends the connection each time is itself the cause


def keep(extensions: Extensions, keep_ms: int, name: str | None) -> Operation[KeptSession]:
    """Keep this session for so long without a connection; `name` None leaves the name as it is."""
    require(extensions)
    return (yield from ask(SESSION_KEEP, SessionKeepParams(keep_ms=keep_ms, name=name), resend=True))


def listing(extensions: Extensions) -> Operation[tuple[SessionListEntry, ...]]:
    """Return this session and the kept or named ones of the same peer."""
    require(extensions)
    return (yield from ask(SESSION_LIST, NoParams(), resend=True)).sessions


def end(extensions: Extensions, session_id: str) -> Operation[bool]:
    """End a detached session with its processes; return whether there was one."""
    require(extensions)
    return (yield from ask(SESSION_END, SessionEndParams(session_id=session_id))).ended


def processes(extensions: Extensions) -> Operation[tuple[SessionProcess, ...]]:
    """Return the processes of all sessions that `listing` shows."""
    require(extensions)
    return (yield from ask(SESSION_PROCESSES, NoParams(), resend=True)).processes


def watch(params: WatchProcessParams) -> Operation[WatchProcessResponse]:
    """Begin to follow a process of another session; the caller has called `require` before.

    Raises `TransportClosed` if the answer is lost.  Whether the server watches is unknown then: `unwatch`
    ends it, and another watch, under another id, may begin, up to `MAX_LOSSES` times.
    """
    return (yield from ask(PROCESS_WATCH, params))


def unwatch(watch_id: str) -> Operation[None]:
    """Follow a process no longer, if the server knows it; it goes on."""
    try:
        yield from ask(PROCESS_UNWATCH, UnwatchParams(process_id=watch_id), resend=True)
    except ExecServerError:
        pass  # it ends with the session


def require(extensions: Extensions) -> None:
    """Raise `UnsupportedByServer` where there are no kept sessions."""
    if not extensions.kept_sessions:
        raise UnsupportedByServer("this server does not have kept sessions")
