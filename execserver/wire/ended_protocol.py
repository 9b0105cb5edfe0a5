"""Frees a connection of the `websockets` library once it has ended.

Such a connection holds its parser, a generator whose frame holds the connection; the error that ended the
parser holds that frame, too.  Without this, each would keep its buffers until the garbage collector runs.
"""

from __future__ import annotations

from websockets.exceptions import InvalidStatus
from websockets.protocol import Protocol


def let_go(protocol: Protocol) -> None:
    """End the parser and drop its error.  The connection must not be fed any more."""
    protocol.parser.close()
    errors, protocol.parser_exc = [protocol.parser_exc], None
    # Of a client's alone; its class would load what no server needs.
    if (error := getattr(protocol, "handshake_exc", None)) is not None:
        errors.append(error)
        setattr(protocol, "handshake_exc", None)  # noqa: B010
    for error in errors:
        if error is not None:
            error.__traceback__ = None
        if isinstance(error, InvalidStatus):
            error.response._exception = None  # the refusing response refers back to its error
