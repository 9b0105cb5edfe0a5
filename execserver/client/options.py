"""The options of a connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

if TYPE_CHECKING:
    from ssl import SSLContext

MIB: Final = 1024 * 1024
REMOTE_IN_FLIGHT: Final = 64
"""Requests that may wait for answers through a relay: other executors end a stream with more."""


class _Values(msgspec.Struct, frozen=True, kw_only=True):
    """Named values that do not change.  Not a dataclass: importing those takes 6 ms, a tenth of a command."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values.  Raises TypeError for a name that there is not."""
        return msgspec.structs.replace(self, **changes)

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "token")
        return f"{type(self).__name__}({', '.join(shown)})"


class ExecServerClientConnectOptions(_Values, frozen=True, kw_only=True):
    """Names, times and limits of one client.  Times are in seconds, sizes in bytes.

    `token`, or what `token_file` holds when a connection is made, is sent to a server that asks who connects;
    only over TLS or on this machine.  `ca_file` is trusted for `wss://` in place of the system's roots, and
    `client_certificate`, the paths of certificate and key, proves who the client is.  `headers` are sent with
    the WebSocket upgrade, too.  `ssl_context`, a `gevent.ssl.SSLContext`, replaces the default one, which
    trusts the system's roots and `SSL_CERT_FILE`.
    `resume_session_id`, or `resume_session_name`, resumes the session of an earlier client; while that is
    still attached, connecting is tried again for `resume_window`.  `session_name` and `keep_ms` ask for a
    session with a name that others of the same peer can use, and that stays for so long without a
    connection (extensions of this project's server).  `request_timeout` None means no limit, as in the
    contract.  At most `max_in_flight` requests wait for answers; further callers wait for their turn.  The
    `flow_rules` module explains the two limits of unread output.
    """

    client_name: str = "execserver-python"
    resume_session_id: str | None = None
    resume_session_name: str | None = None
    session_name: str | None = None
    keep_ms: int | None = None
    connect_timeout: float = 10.0
    initialize_timeout: float = 10.0
    resume_window: float = 25.0
    resume_interval: float = 0.1
    request_timeout: float | None = None
    close_timeout: float = 2.0
    max_in_flight: int = 1024
    max_message_bytes: int = 64 * MIB
    max_frame_bytes: int = 16 * MIB
    send_fragment_bytes: int = 4 * MIB
    max_unread_bytes: int = 8 * MIB
    max_unread_bytes_while_waiting: int = 64 * MIB
    token: str | None = None
    token_file: str | None = None
    ca_file: str | None = None
    client_certificate: tuple[str, str] | None = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    ssl_context: SSLContext | None = None


class RemoteExecServerConnectArgs(_Values, frozen=True, kw_only=True):
    """The address of an executor behind a relay: registry URL, environment id and the caller's token."""

    url: str
    environment_id: str
    token: str
    account_id: str | None = None
    options: ExecServerClientConnectOptions = msgspec.field(default_factory=ExecServerClientConnectOptions)
