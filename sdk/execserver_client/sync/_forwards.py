"""The blocking twin of `execserver_client._forwards`; `build.py docs` writes it from there."""

from __future__ import annotations

from typing import Any, Self

from execserver.client.errors import ExecServerError
from execserver_client import _forwards as asynchronous
from execserver_client.sync._portal import Portal


class LocalForward:
    """A listener of this machine; `address` is where it listens.

    `last_error` says why the newest connection that could not be made failed; who had connected here sees
    the connection end.  One whose bytes the box refuses later ends by a reset.
    """

    def __init__(self, portal: Portal, wrapped: asynchronous.LocalForward) -> None:
        self._portal = portal
        self._wrapped = wrapped

    @property
    def last_error(self) -> ExecServerError | None:
        """As in `execserver_client.LocalForward`."""
        return self._wrapped.last_error

    @property
    def address(self) -> tuple[str, int]:
        """As in `execserver_client.LocalForward`."""
        return self._wrapped.address

    def close(self) -> None:
        """Listen no longer and end the connections.  May be called again."""
        self._portal.call(self._wrapped.aclose)

    def __enter__(self) -> Self:
        self._portal.call(self._wrapped.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._portal.call(self._wrapped.__aexit__, *error)
