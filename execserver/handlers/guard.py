"""Turns whatever one step of a request raises into the error that its client gets.

This is one of the two places that catch everything: a bug becomes an internal error for that request and a
line in the log, and the connection lives on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from execserver.protocol.errors import InternalError, RpcError, from_os_error

_log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")


def guarded(what: str, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run one step of a request; raise whatever it raises as an `RpcError`.

    `what` names the request in the log.
    """
    try:
        return act(*args, **kwargs)
    except RpcError:
        raise
    except OSError as error:
        raise from_os_error(error) from error
    except Exception as error:
        _log.exception("%s failed", what)
        raise InternalError(f"internal error: {type(error).__name__}") from error
