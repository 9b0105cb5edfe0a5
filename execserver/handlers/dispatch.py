"""From a request to its answer: look-up, params, life cycle, handler, and errors made answers.

This is one of the two places that catch everything: a fault in a handler becomes an internal error for that
request and a line in the log, and the connection lives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from execserver.handlers.context import Call
from execserver.handlers.registry import HANDLERS
from execserver.handlers.replies import Answer
from execserver.protocol.decoding import decode_params
from execserver.protocol.envelope import Request
from execserver.protocol.errors import InternalError, MethodNotFound, RpcError, from_os_error
from execserver.protocol.methods import INITIALIZE, METHODS

_log = logging.getLogger(__name__)

T = TypeVar("T")


def dispatch(call: Call, request: Request) -> Answer:
    """Answer one request or raise `RpcError`.

    Params are decoded before the life cycle is looked at, as the contract has it (section 5).
    """
    method = METHODS.get(request.method)
    if method is None:
        raise MethodNotFound(request.method)
    params = decode_params(method, request.params)
    if method is not INITIALIZE:
        call.connection.rules.check_request(method.family.value)
    return HANDLERS[method.name](call, params)


def guarded(what: str, act: Callable[[], T]) -> T:
    """Run one step of a request; whatever it raises comes out as an `RpcError`."""
    try:
        return act()
    except RpcError:
        raise
    except OSError as error:
        raise from_os_error(error) from error
    except Exception as error:
        _log.exception("%s failed", what)
        raise InternalError(f"internal error: {type(error).__name__}") from error
