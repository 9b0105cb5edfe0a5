"""Turns whatever one step of a request raises into the error that its client gets.

This is one of the two places that catch everything: a bug becomes an internal error for that request and a
line in the log, and the connection lives on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from execserver.protocol.errors import InternalError, RpcError, from_os_error

_log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def guarded(what: str, act: Callable[[*Ts], T], *args: *Ts) -> T:
    """Run one step of a request; raise whatever it raises as an `RpcError`.

    `what` names the request in the log.
    """
    found = attempted(what, act, *args)
    if isinstance(found, RpcError):
        try:
            raise found
        finally:
            del found  # its traceback holds this frame: a reference cycle
    return found


def attempted(what: str, act: Callable[[*Ts], T], *args: *Ts) -> T | RpcError:
    """Run one step of a request; return whatever it raises as an `RpcError`.

    A further exception would be a twentieth of what a request that fails costs.
    """
    try:
        return act(*args)
    except RpcError as error:
        return error
    except OSError as error:
        return from_os_error(error)
    except Exception as error:
        _log.exception("%s failed", what)
        return InternalError(f"internal error: {type(error).__name__}")
