"""The methods and notifications of kept sessions and watched processes, which only this server has.

`methods` puts them into its table.
"""

from __future__ import annotations

from typing import Any

from execserver.protocol import session, watching
from execserver.protocol.method import Family, Method, NotificationMethod

_SINCE = "execserver"


SESSION_KEEP = Method(
    "session/keep",
    session.SessionKeepParams,
    session.KeptSession,
    family=Family.SESSION,
    since=_SINCE,
    doc="Say how long the session of this connection is to stay without one, and name it.",
    extension=True,
)
SESSION_LIST = Method(
    "session/list",
    session.NoParams,
    session.SessionListResponse,
    family=Family.SESSION,
    since=_SINCE,
    doc="List the session of this connection and the kept or named ones of the same peer.",
    extension=True,
)
SESSION_END = Method(
    "session/end",
    session.SessionEndParams,
    session.SessionEndResponse,
    family=Family.SESSION,
    since=_SINCE,
    doc="End a detached session of the same peer, with its processes.",
    extension=True,
)
SESSION_PROCESSES = Method(
    "session/processes",
    session.NoParams,
    watching.SessionProcessesResponse,
    family=Family.EXEC,
    since=_SINCE,
    doc="List the processes of all sessions that `session/list` shows.",
    extension=True,
)
PROCESS_WATCH = Method(
    "process/watch",
    watching.WatchProcessParams,
    watching.WatchProcessResponse,
    family=Family.EXEC,
    since=_SINCE,
    doc="Follow a process of another session, which then has an id in this one, too.",
    extension=True,
)
PROCESS_UNWATCH = Method(
    "process/unwatch",
    watching.UnwatchParams,
    watching.UnwatchResponse,
    family=Family.EXEC,
    since=_SINCE,
    doc="Follow a process no longer.",
    extension=True,
)
PROCESS_TAKE = Method(
    "process/take",
    watching.TakeParams,
    watching.TakeResponse,
    family=Family.EXEC,
    since=_SINCE,
    doc="Be the session that writes to a process.",
    extension=True,
)

PROCESS_LOG = Method(
    "process/log",
    watching.LogParams,
    watching.LogResponse,
    family=Family.EXEC,
    since=_SINCE,
    doc="Return a page of all output of a process that is kept, in memory and on disk.",
    extension=True,
)

PROCESS_TAKEN = NotificationMethod(
    "process/taken",
    watching.TakenNotification,
    since=_SINCE,
    doc="Another session writes to a process now.",
)
PROCESS_GAP = NotificationMethod(
    "process/gap",
    watching.GapNotification,
    since=_SINCE,
    doc="A watcher was too slow, and some events will not come.",
)

OWN_METHODS: tuple[Method[Any, Any], ...] = (
    SESSION_KEEP,
    SESSION_LIST,
    SESSION_END,
    SESSION_PROCESSES,
    PROCESS_WATCH,
    PROCESS_UNWATCH,
    PROCESS_TAKE,
    PROCESS_LOG,
)
OWN_NOTIFICATIONS: tuple[NotificationMethod[Any], ...] = (PROCESS_TAKEN, PROCESS_GAP)
