"""`port/*`: TCP connections from and to the server's machine (wire contract, section 17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from execserver.handlers.context import Call
from execserver.handlers.registry import handles
from execserver.handlers.replies import Later, Reply
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.own_methods import (
    PORT_ACK,
    PORT_CLOSE,
    PORT_DATA,
    PORT_LIST,
    PORT_LISTEN,
    PORT_OPEN,
    PORT_RESUME,
)
from execserver.protocol.ports import (
    PortAckParams,
    PortConnectParams,
    PortDataParams,
    PortEmptyResponse,
    PortIdParams,
    PortListenResponse,
    PortListResponse,
    PortOpenParams,
    PortOpenResponse,
    PortReceivedResponse,
    PortStreamEntry,
)
from execserver.protocol.session import NoParams

if TYPE_CHECKING:
    from execserver.services.ports.stream import PortStream
    from execserver.services.ports.table import PortTable


def _table(call: Call) -> PortTable:
    return call.session.ports(call.services.forwarding)


def _check_sandbox(method: str, params: PortOpenParams) -> None:
    if params.sandbox is not None and not params.sandbox.permissions.network_enabled:
        raise InvalidRequest(f"{method}: the sandbox does not allow the network")


@handles(PORT_OPEN, waits=False)
def open_port(call: Call, params: PortConnectParams) -> Reply | Later:
    """Connect to an address, from the server, and pass on what came with the request."""
    _check_sandbox("port/open", params)
    table = _table(call)
    where = params.host, params.port
    stream = table.open_at_once(params.port_id, *where, binary=params.binary)
    if stream is not None:
        return _begun(stream, params)
    opening = table.opening(params.port_id)
    return Later(lambda: _begun(table.open(opening, *where, binary=params.binary), params))


def _begun(stream: PortStream, params: PortConnectParams) -> Reply:
    received = stream.put_first(params.chunk)
    found = PortOpenResponse(
        port_id=params.port_id,
        address=stream.address,
        window_bytes=stream.window_bytes,
        received=received,
    )
    return Reply(found, stream.start)


@handles(PORT_LISTEN)
def listen(call: Call, params: PortOpenParams) -> Later:
    """Listen on the server's machine."""
    _check_sandbox("port/listen", params)
    table = _table(call)
    opening = table.listening(params.port_id)

    def begin() -> PortListenResponse:
        address = table.listen(opening, params.host, params.port, binary=params.binary)
        return PortListenResponse(port_id=params.port_id, address=address)

    return Later(begin)


@handles(PORT_DATA, waits=False)
def data(call: Call, params: PortDataParams) -> PortReceivedResponse | Later:
    """Write to a socket; answered once the kernel has the bytes."""
    stream = _table(call).known(params.port_id)
    end = stream.put(params.offset, params.chunk, params.eof)
    if stream.has_taken(end):
        return PortReceivedResponse(received=stream.received)
    return Later(lambda: PortReceivedResponse(received=stream.wait_until_taken(end)), repeats=True)


@handles(PORT_ACK, waits=False)
def acknowledge(call: Call, params: PortAckParams) -> PortEmptyResponse:
    """Open the window for what the client has taken."""
    stream = _table(call).streams.get(params.port_id)
    if stream is not None:  # it may have ended just now
        stream.acknowledge(params.received)
    return PortEmptyResponse()


@handles(PORT_RESUME, waits=False)
def resume(call: Call, params: PortAckParams) -> Reply:
    """Go on after a lost connection, from where the client is."""
    stream = _table(call).known(params.port_id)
    stream.acknowledge(params.received)
    return Reply(PortReceivedResponse(received=stream.received), stream.send_again)


@handles(PORT_CLOSE, waits=False)
def close(call: Call, params: PortIdParams) -> PortEmptyResponse:
    """End a stream or a listener, open or being opened."""
    _table(call).close_one(params.port_id)
    return PortEmptyResponse()


@handles(PORT_LIST)
def list_ports(call: Call, params: NoParams) -> Later:
    """List what listens on the machine, and the streams of the session."""
    from execserver.services.ports.listing import listening

    table = _table(call)
    own = {process.pid: process_id for process_id, process in call.session.processes}

    def look() -> PortListResponse:
        found, cut = listening(own)
        streams = [
            PortStreamEntry(
                port_id=one.port_id,
                listen_id=one.listen_id,
                address=one.address,
                sent=one.sent,
                received=one.received,
            )
            for one in list(table.streams.values())
        ]
        return PortListResponse(listening=tuple(found), streams=tuple(streams), truncated=cut)

    return Later(look, repeats=True)
