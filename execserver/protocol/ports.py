"""Params, results and notifications of forwarded ports (extensions of this server)."""

from __future__ import annotations

from execserver.protocol.record import U16, U64, Base64, Record, refuse_beyond_u64
from execserver.protocol.sandbox import FileSystemSandboxContext


class PortAddress(Record, frozen=True, kw_only=True):
    """One end of a TCP connection: a numeric host and a port."""

    host: str
    port: U16


class PortOpenParams(Record, frozen=True, kw_only=True):
    """Where to connect to, or to listen; `port_id` is the client's name for it.

    `binary`: what comes may be sent in the binary form of messages.
    """

    port_id: str
    host: str
    port: U16
    sandbox: FileSystemSandboxContext | None = None
    binary: bool = False


class PortConnectParams(PortOpenParams, frozen=True, kw_only=True):
    """Where to connect to, and perhaps the first bytes for the connection."""

    chunk: Base64 = b""


class PortOpenResponse(Record, frozen=True, kw_only=True):
    """The connection; at most `window_bytes` may be on their way in each direction.

    `received`: how many of the first bytes the server has taken; the others come with `port/data`.
    """

    port_id: str
    address: PortAddress
    window_bytes: U64
    received: U64 = 0


class PortListenResponse(Record, frozen=True, kw_only=True):
    """The address that is listened on."""

    port_id: str
    address: PortAddress


class PortDataParams(Record, frozen=True, kw_only=True):
    """Bytes for a socket; `offset` is how many were sent before, `eof` ends that direction."""

    port_id: str
    offset: U64
    chunk: Base64
    eof: bool = False

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.offset)


class PortReceivedResponse(Record, frozen=True, kw_only=True):
    """How many bytes of the client's the server has taken so far."""

    received: U64


class PortAckParams(Record, frozen=True, kw_only=True):
    """The client has taken so many bytes so far."""

    port_id: str
    received: U64

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.received)


class PortIdParams(Record, frozen=True, kw_only=True):
    """Which stream or listener."""

    port_id: str


class PortEmptyResponse(Record, frozen=True, kw_only=True):
    """Empty."""


class PortDataNotification(Record, frozen=True, kw_only=True):
    """Bytes from a socket; `eof`: there will be no more."""

    port_id: str
    offset: U64
    chunk: Base64
    eof: bool


class PortClosedNotification(Record, frozen=True, kw_only=True):
    """A stream has ended; `error` says why if it was not by both sides."""

    port_id: str
    error: str | None = None


class PortAcceptedNotification(Record, frozen=True, kw_only=True):
    """Somebody has connected to a listener; the new stream has an id made by the server."""

    listen_id: str
    port_id: str
    peer: PortAddress
    window_bytes: U64


class ListeningPort(Record, frozen=True, kw_only=True):
    """A TCP port that somebody listens on; `process_id` is set for processes of this session."""

    host: str
    port: U16
    uid: U64
    user: str | None = None
    pid: U64 | None = None
    program: str | None = None
    process_id: str | None = None


class PortStreamEntry(Record, frozen=True, kw_only=True):
    """A stream of this session: what came from the socket (`sent`) and from the client (`received`)."""

    port_id: str
    listen_id: str | None = None
    address: PortAddress
    sent: U64
    received: U64


class PortListResponse(Record, frozen=True, kw_only=True):
    """What listens on the machine, and the streams of this session."""

    listening: tuple[ListeningPort, ...]
    streams: tuple[PortStreamEntry, ...]
    truncated: bool
