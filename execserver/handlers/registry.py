"""Binds handlers to the method table: every declared method has exactly one handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from execserver.handlers.context import Call
from execserver.handlers.replies import Answer
from execserver.protocol.methods import METHODS, Method

# The params record of a handler is the one its method declares; `decode_params` makes it.
Handler = Callable[[Call, Any], Answer]
H = TypeVar("H", bound=Handler)

HANDLERS: dict[str, Handler] = {}
NEVER_WAIT: dict[str, Handler] = {}  # those of them that the event loop may call


def handles(method: Method[Any, Any], *, waits: bool = True) -> Callable[[H], H]:
    """Bind the decorated function to a declared method.

    Without `waits` it is called in the event loop: it must never block, but may return `InTurn` or `Later`.
    """

    def bind(handler: H) -> H:
        if method.name in HANDLERS:
            raise ValueError(f"{method.name} has two handlers")
        HANDLERS[method.name] = handler
        if not waits:
            NEVER_WAIT[method.name] = handler
        return handler

    return bind


def check_complete() -> None:
    """Raise `LookupError` if a declared method has no handler, or a handler no declaration."""
    if missing := METHODS.keys() ^ HANDLERS.keys():
        raise LookupError(f"methods without handler or declaration: {', '.join(sorted(missing))}")
