"""Params and results of `initialize` (wire contract, section 6)."""

from __future__ import annotations

import msgspec

from execserver.protocol.environment import EnvironmentInfo
from execserver.protocol.record import Record


class NoParams(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The params of methods without any: missing, null or `{}`."""


class InitializeParams(Record, frozen=True, kw_only=True):
    """Who the client is, and which session it wants back after a lost connection."""

    client_name: str
    resume_session_id: str | None = None


class InitializeResponse(Record, frozen=True, kw_only=True):
    """The session, and what this server can do (left out by servers of the older contract)."""

    session_id: str
    environment_info: EnvironmentInfo | msgspec.UnsetType = msgspec.UNSET


class InitializedNotification(Record, frozen=True, kw_only=True):
    """The client has taken note of the session; its params are ignored."""
