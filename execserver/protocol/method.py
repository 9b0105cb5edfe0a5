"""The types for declaring methods and notifications; the declarations themselves are in `methods`."""

from __future__ import annotations

import enum
from typing import Generic, TypeVar

import msgspec

from execserver.protocol.record import Record

P = TypeVar("P", bound=Record)
R = TypeVar("R", bound=msgspec.Struct)


class Family(enum.Enum):
    """The group of a method; the value is its name in the errors for calls in the wrong state."""

    SESSION = "session"
    EXEC = "exec"
    ENVIRONMENT_INFO = "environment info"
    ENVIRONMENT_STATUS = "environment status"
    ENVIRONMENT_CONFIG = "environment config"
    CAPABILITY_DISCOVERY = "capability discovery"
    FILESYSTEM = "filesystem"
    HTTP = "http"


class Method(Generic[P, R]):
    """One method: its record types, and what other layers need to know about it."""

    __slots__ = ("doc", "extension", "family", "family_name", "name", "params", "result", "since")

    def __init__(
        self,
        name: str,
        params: type[P],
        result: type[R],
        *,
        family: Family,
        since: str,
        doc: str,
        extension: bool = False,
    ) -> None:
        self.name = name
        self.params = params
        self.result = result
        self.family = family
        self.family_name: str = family.value  # each request asks, and a look through the enum costs more
        self.since = since
        self.doc = doc
        self.extension = extension

    def __repr__(self) -> str:
        return f"<method {self.name}>"


class ServerRequest(Generic[P, R]):
    """A request that the server makes and the client answers."""

    __slots__ = ("doc", "name", "params", "result", "since")

    def __init__(self, name: str, params: type[P], result: type[R], *, since: str, doc: str) -> None:
        self.name = name
        self.params = params
        self.result = result
        self.since = since
        self.doc = doc

    def __repr__(self) -> str:
        return f"<server request {self.name}>"


class NotificationMethod(Generic[P]):
    """One notification; `to_server` is True if the client sends it."""

    __slots__ = ("doc", "name", "params", "since", "to_server")

    def __init__(self, name: str, params: type[P], *, since: str, doc: str, to_server: bool = False) -> None:
        self.name = name
        self.params = params
        self.since = since
        self.doc = doc
        self.to_server = to_server

    def __repr__(self) -> str:
        return f"<notification {self.name}>"
