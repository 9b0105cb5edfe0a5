"""The options of a connection."""

from __future__ import annotations

from execserver.client.options import ExecServerClientConnectOptions

__all__ = ["ConnectOptions"]


class ConnectOptions(ExecServerClientConnectOptions, frozen=True, kw_only=True):
    """Names, times and limits of one client.  Times are in seconds, sizes in bytes.

    A connection that is lost is made again for `resume_window`, every `resume_interval`.  `request_timeout`
    None means that a call has no limit of its own.  At most `max_in_flight` calls wait for answers; further
    callers wait for their turn.  `max_unread_bytes` is what one process may have printed without a reader
    before the client stops reading, so that the box stops the process; while the one who should read waits
    for an answer it is `max_unread_bytes_while_waiting`, beyond which the oldest output is lost and its
    reader gets an `OutputGap`.

    `headers` are sent with the upgrade of a WebSocket, and `client_certificate`, the paths of certificate and
    key, proves who the client is.  `ssl_context`, an `ssl.SSLContext`, replaces the default one, which trusts
    the system's roots and `SSL_CERT_FILE`.  The arguments of `connect` count before what is set here.
    """

    client_name: str = "execserver-client"
