"""Connection reuse: requests over a connection that was used before, where the server keeps it open.

The registry is asked whenever a harness connects; a new connection with its TLS handshake would be the
longest part of that.  A kept connection on which anything has arrived meanwhile is not used.  One that ends
before it has answered counts as closed before the request, which is then sent once more on a new one.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping
from typing import NamedTuple

from gevent import socket

from execserver.http_client.exchange import BrokenResponse, Exchange
from execserver.http_client.fetch import Fetcher
from execserver.http_client.request import PreparedRequest
from execserver.http_client.response_events import ResponseHead

KEPT_CONNECTIONS = 4
KEPT_S = 45.0  # many servers close what was silent for a minute


_METHOD = "POST"  # what all calls of a registry are


class _Kept(NamedTuple):
    place: tuple[str, tuple[str, int]]
    sock: socket.socket
    exchange: Exchange
    until: float


class ReusingFetcher(Fetcher):
    """A `Fetcher` with connection reuse and without redirects; owns the connections it keeps."""

    _expects_plain = True

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(environ, 0)
        self._kept: list[_Kept] = []
        self._closed = False

    def keep(self, request: PreparedRequest, exchange: Exchange) -> bool:
        """Take over the connection of a finished exchange; return False if it cannot be reused."""
        released = None if self._closed else exchange.release()
        if released is None:
            return False
        following = Exchange(released[0], _METHOD, released[1])
        self._kept.append(_Kept(_place(request), released[0], following, time.monotonic() + KEPT_S))
        if len(self._kept) > KEPT_CONNECTIONS:
            self._kept.pop(0).exchange.close()
        return True

    def close(self) -> None:
        """Close all kept connections, and keep none from now on."""
        self._closed = True
        for kept in self._kept:
            kept.exchange.close()
        self._kept.clear()

    def _ask(self, request: PreparedRequest) -> tuple[ResponseHead, Exchange]:
        kept = self._take(_place(request)) if request.method == _METHOD else None
        if kept is not None:
            proxy = self._proxies.proxy_for(request.url)
            try:
                return self._send(kept.exchange, request, proxy)
            except (OSError, BrokenResponse):
                pass  # closed in the same moment
        return super()._ask(request)

    def _take(self, place: tuple[str, tuple[str, int]]) -> _Kept | None:
        """Return the newest usable connection to an address; close the expired and those no longer silent."""
        found: _Kept | None = None
        now = time.monotonic()
        for kept in reversed(list(self._kept)):
            if now >= kept.until or not _is_silent(kept.sock):
                self._kept.remove(kept)
                kept.exchange.close()
            elif found is None and kept.place == place:
                self._kept.remove(kept)
                found = kept
        return found


def _place(request: PreparedRequest) -> tuple[str, tuple[str, int]]:
    return request.url.scheme, request.url.address


def _is_silent(sock: socket.socket) -> bool:
    """True if nothing has arrived; no answer is awaited, so it could only be the end of the connection."""
    poll = select.poll()
    try:
        poll.register(sock.fileno(), select.POLLIN)
        return not poll.poll(0)
    except (OSError, ValueError):
        return False
