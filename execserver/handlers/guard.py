"""Errors made answers: whatever one step of a request raises becomes what its client is told.

This is one of the two places that catch everything: a fault of ours becomes an internal error for that
request and a line in the log, and the connection lives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from execserver.protocol.errors import InternalError, RpcError, from_os_error

_log = logging.getLogger(__name__)

T = TypeVar("T")


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
