"""Params and results of `initialize` (wire contract, section 6)."""

from __future__ import annotations

import msgspec

from execserver.protocol.environment import EnvironmentInfo
from execserver.protocol.record import U64, Record, refuse_beyond_u64


class NoParams(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The params of methods without any: missing, null or `{}`."""


class InitializeParams(Record, frozen=True, kw_only=True):
    """Who the client is, and which session it wants back after a lost connection."""

    client_name: str
    resume_session_id: str | None = None
    resume_session_name: str | None = None
    session_name: str | None = None
    keep_ms: U64 | None = None

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.keep_ms)


class KeptSession(Record, frozen=True, kw_only=True):
    """How long a session stays without a connection, and its name, if it has one."""

    keep_ms: U64
    name: str | None = None


class InitializeResponse(Record, frozen=True, kw_only=True):
    """The session, and what this server can do (left out by servers of the older contract).

    `kept` is there if the client asked for a time or a name, or the session has one from before.
    """

    session_id: str
    environment_info: EnvironmentInfo | msgspec.UnsetType = msgspec.UNSET
    kept: KeptSession | msgspec.UnsetType = msgspec.UNSET


class InitializedNotification(Record, frozen=True, kw_only=True):
    """The client has taken note of the session; its params are ignored."""


class SessionKeepParams(Record, frozen=True, kw_only=True):
    """How long the session of this connection is to stay without one; no name leaves it as it is."""

    keep_ms: U64
    name: str | None = None

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.keep_ms)


class SessionListEntry(Record, frozen=True, kw_only=True):
    """One session; `own` is that of this connection, and `expires_in_ms` runs while it is detached."""

    session_id: str
    name: str | None = None
    attached: bool
    own: bool
    client_name: str
    created_at_ms: U64
    keep_ms: U64
    expires_in_ms: U64 | None = None
    processes: U64


class SessionListResponse(Record, frozen=True, kw_only=True):
    """The session of this connection, and the kept or named ones of the same peer."""

    sessions: tuple[SessionListEntry, ...]


class SessionEndParams(Record, frozen=True, kw_only=True):
    """Which detached session is over."""

    session_id: str


class SessionEndResponse(Record, frozen=True, kw_only=True):
    """Whether there was one."""

    ended: bool
