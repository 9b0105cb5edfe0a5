"""What is asked about forwarded ports, as operations."""

from __future__ import annotations

from itertools import chain
from typing import Final

import msgspec

from execserver.client.errors import (
    ExecServerError,
    ProtocolViolation,
    RequestFailed,
    TransportClosed,
    UnsupportedByServer,
)
from execserver.client.operations.call import Operation, ask
from execserver.client.rules import wire
from execserver.client.rules.port_log import PortLog
from execserver.client.rules.wire import Sandbox
from execserver.protocol.environment import Extensions
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
    PortAddress,
    PortConnectParams,
    PortIdParams,
    PortListResponse,
    PortOpenParams,
)
from execserver.protocol.session import NoParams

_NONE: Final = Extensions()


def require(extensions: Extensions) -> None:
    """Raise `UnsupportedByServer` where no ports are forwarded."""
    if extensions.port_forward is None:
        raise UnsupportedByServer("this server does not forward ports")


def place(port_id: str, host: str, port: int, sandbox: Sandbox) -> PortOpenParams:
    """Return the params of `connect` and `listen`.  Raises ValueError for an invalid sandbox."""
    return PortOpenParams(port_id=port_id, host=host, port=port, sandbox=wire.sandbox_context(sandbox))


def connect(
    at: PortOpenParams, log: PortLog, first: bytes = b"", extensions: Extensions = _NONE
) -> Operation[bytes]:
    """Connect from the server; `log` is that of the connection.

    Returns what the server has not taken of the `first` bytes: all of them where it knows of none.
    """
    wire.check_bytes(first)
    params = PortConnectParams(
        port_id=at.port_id,
        host=at.host,
        port=at.port,
        sandbox=at.sandbox,
        binary=extensions.binary_messages,
        chunk=first,
    )
    answer = yield from ask(PORT_OPEN, params)
    if answer.received > len(first):
        raise ProtocolViolation("the server has taken more of a connection's first bytes than there were")
    log.begin(answer.address, answer.window_bytes, answer.received)
    return first[answer.received :]


def listen(at: PortOpenParams, extensions: Extensions = _NONE) -> Operation[PortAddress]:
    """Listen on the server's machine, and return the address."""
    params = msgspec.structs.replace(at, binary=extensions.binary_messages)
    return (yield from ask(PORT_LISTEN, params)).address


def listing(extensions: Extensions) -> Operation[PortListResponse]:
    """Return who listens on the machine, and the streams of this session."""
    require(extensions)
    return (yield from ask(PORT_LIST, NoParams()))


def send(log: PortLog, data: bytes, *, eof: bool = False) -> Operation[None]:
    """Write all of it; offsets make it safe to send them again.  Raises what ended the stream."""
    for params in chain(log.given_up(), log.pieces(data, eof=eof)):
        yield from ask(PORT_DATA, params, resend=True)
        log.settle()


def acknowledge(port_id: str, received: int) -> Operation[None]:
    """Open the window of a stream."""
    try:
        yield from ask(PORT_ACK, PortAckParams(port_id=port_id, received=received), resend=True)
    except ExecServerError:
        pass  # the stream hears of it by itself


def close(port_id: str) -> Operation[None]:
    """End a stream or a listener."""
    try:
        yield from ask(PORT_CLOSE, PortIdParams(port_id=port_id), resend=True)
    except ExecServerError:
        pass  # it ends with the session


def resume(log: PortLog) -> Operation[ExecServerError | None]:
    """Go on with a stream on a new connection; return why it has ended, if it has.

    What may be lost of the pieces under way is sent again here: their sender may wait for more to send, and
    would notice only then.  He settles them; what comes twice is ignored.
    """
    try:
        answer = yield from ask(PORT_RESUME, PortAckParams(port_id=log.port_id, received=log.arrived))
        for params in log.given_up():
            if params.eof or params.offset + len(params.chunk) > answer.received:
                yield from ask(PORT_DATA, params, resend=True)
    except RequestFailed as error:
        return TransportClosed(f"the connection has ended meanwhile: {error}")
    except ExecServerError:
        pass  # the next connection tries again
    return None
