"""From a request to its answer: method look-up, params, life-cycle check, handler."""

from __future__ import annotations

from functools import partial
from typing import Any

from execserver.core.connection import READY
from execserver.handlers.context import Call
from execserver.handlers.limits import check_granted
from execserver.handlers.registry import HANDLERS, NEVER_WAIT
from execserver.handlers.replies import Answer, InTurn
from execserver.protocol.decoding import decode_params
from execserver.protocol.envelope import Request
from execserver.protocol.errors import MethodNotFound
from execserver.protocol.methods import INITIALIZE, METHODS, Method


def dispatch(call: Call, request: Request) -> Answer:
    """Answer one request or raise `RpcError`.  Never blocks: a handler that may wait is left to `InTurn`."""
    method, params = checked(call, request)
    handler = NEVER_WAIT.get(method.name)
    if handler is not None:
        return handler(call, params)
    return InTurn(partial(HANDLERS[method.name], call, params))


def handle(call: Call, method: Method[Any, Any], params: object) -> Answer:
    """Answer a request that was found to be allowed, or raise `RpcError`; may block."""
    return HANDLERS[method.name](call, params)


def checked(call: Call, request: Request) -> tuple[Method[Any, Any], Any]:
    """Return method and params of a request that is allowed now, or raise `RpcError`.

    Params are decoded before the life-cycle check, in the order of the reference server (section 5).  What
    its grant keeps from a client comes last.
    """
    method = METHODS.get(request.method)
    if method is None:
        raise MethodNotFound(request.method)
    params = decode_params(method, request.params)
    if request.trace is not None:
        from execserver.handlers.tracing import traced  # late: few clients trace

        params = traced(call, method, params, request.trace)
    connection = call.connection
    if connection.rules.phase is not READY and method is not INITIALIZE:
        connection.rules.check_request(method.family_name)
    identity = connection.identity
    if identity.grant is not None:
        check_granted(method.name, identity)
    return method, params
