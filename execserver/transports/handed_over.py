"""One WebSocket connection on its way to the program that takes a server's place, and back into life there.

Only what is plain can go: what is between TLS and the socket is in this process's memory.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from execserver.access import handed_over
from execserver.core.connection import ConnectionPhase
from execserver.handlers.context import Call
from execserver.handover.carrier import Incoming, Outgoing
from execserver.handover.records import PackedConnection
from execserver.settings import Settings
from execserver.transports.connection import Connection
from execserver.transports.ws_server import Shared, WebSocketTransport

if TYPE_CHECKING:
    from execserver.services.sessions.host import Session


def pack(transport: WebSocketTransport, connection: Connection, out: Outgoing) -> PackedConnection:
    """Return what `transport_of` and `bind` take; the connection has nothing `unfinished`."""
    call = connection.call
    context = call.connection
    handles = [(name, out.keep(fd), mode, local) for name, fd, mode, local in context.handles.pack()]
    return PackedConnection(
        fd=out.keep(transport.sock.fileno()),
        peer=transport.peer,
        is_tcp=transport.is_tcp,
        frames=transport.frames.pack(),
        unsent=transport.outbox.pack(),
        messages=connection.pack_messages(),
        phase=context.rules.phase.name,
        client_name=context.client_name,
        session_id=call.session_id,
        identity=handed_over.pack(context.identity),
        handles=handles,
        missing=None if context.watch is None else context.watch.pack(),
        questions=context.questions.pack(),
    )


def transport_of(
    packed: PackedConnection, incoming: Incoming, settings: Settings, shared: Shared
) -> WebSocketTransport:
    """Return the transport, which has not started."""
    sock = socket.socket(fileno=incoming.take(packed.fd))
    sock.setblocking(False)
    transport = WebSocketTransport(sock, packed.peer, settings, shared, b"", packed.is_tcp)
    if packed.is_tcp:
        shared.liveness.taken_over(transport)
    transport.frames.restore(packed.frames)
    return transport


def bind(call: Call, packed: PackedConnection, incoming: Incoming, session: Session | None) -> None:
    """Give a connection what belonged to it."""
    context = call.connection
    context.rules.phase = ConnectionPhase[packed.phase]
    context.client_name = packed.client_name
    context.handles.restore(
        [(name, incoming.take(fd), mode, local) for name, fd, mode, local in packed.handles]
    )
    if session is not None:
        call.take_session(session)
        session.attach(context.sink, context.questions)
    context.questions.restore(*packed.questions)
    if packed.missing is not None:
        context.watch = call.services.watch_for(context.sink)


def go_on(transport: WebSocketTransport, connection: Connection, packed: PackedConnection) -> None:
    """Read and write again: first what was not sent."""
    transport.start(connection)
    transport.outbox.restore(packed.unsent)
    watch = connection.call.connection.watch
    if watch is not None and packed.missing is not None:
        watch.restore(*packed.missing)
