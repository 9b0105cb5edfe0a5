"""Requests over a connection that was used before, where the server lets it live.

The registry is asked whenever a harness comes; a new connection, and the handshake of TLS on it, would be the
longest part of letting it in.  A kept connection on which anything has happened meanwhile is not used.  One
that ends before it has answered counts as closed before, and the request goes out once more on a new one.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping
from typing import NamedTuple

from gevent import socket

from execserver.remote.usual_answer import KeptExchange
from execserver.services.http.exchange import BrokenResponse, Exchange, ResponseHead
from execserver.services.http.fetch import Fetcher
from execserver.services.http.request import PreparedRequest

KEPT_CONNECTIONS = 4
KEPT_S = 45.0  # many servers close what was silent for a minute


class _Kept(NamedTuple):
    place: tuple[str, tuple[str, int]]
    exchange: KeptExchange
    until: float


class KeepingFetcher(Fetcher):
    """A `Fetcher` that follows no redirects; owns the connections it keeps."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(environ, 0)
        self._kept: list[_Kept] = []
        self._closed = False

    def keep(self, request: PreparedRequest, exchange: Exchange) -> bool:
        """Take over the connection of a finished exchange; False if it is of no further use."""
        following = None if self._closed else _following(exchange)
        if following is None:
            return False
        self._kept.append(_Kept(_place(request), following, time.monotonic() + KEPT_S))
        if len(self._kept) > KEPT_CONNECTIONS:
            self._kept.pop(0).exchange.close()
        return True

    def close(self) -> None:
        """End all kept connections, and keep none any more."""
        self._closed = True
        for kept in self._kept:
            kept.exchange.close()
        self._kept.clear()

    def _ask(self, request: PreparedRequest) -> tuple[ResponseHead, Exchange]:
        kept = self._take(_place(request)) if request.method == KeptExchange.METHOD else None
        if kept is not None:
            proxy = self._proxies.proxy_for(request.url)
            try:
                return self._send(kept.exchange, request, proxy)
            except (OSError, BrokenResponse):
                pass  # closed in the same moment
        return super()._ask(request)

    def _take(self, place: tuple[str, tuple[str, int]]) -> _Kept | None:
        """Return the newest connection to a place that is still silent, and end those that are not."""
        found: _Kept | None = None
        now = time.monotonic()
        for kept in reversed(list(self._kept)):
            if now >= kept.until or not _is_silent(kept.exchange.sock):
                self._kept.remove(kept)
                kept.exchange.close()
            elif found is None and kept.place == place:
                self._kept.remove(kept)
                found = kept
        return found


def _following(exchange: Exchange) -> KeptExchange | None:
    """Return an exchange for the next request on the same connection, made now, when nobody waits for it."""
    if isinstance(exchange, KeptExchange) and exchange.is_fresh:
        return exchange
    released = exchange.release()
    return None if released is None else KeptExchange(*released)


def _place(request: PreparedRequest) -> tuple[str, tuple[str, int]]:
    return request.url.scheme, request.url.address


def _is_silent(sock: socket.socket) -> bool:
    """Tell whether nothing has arrived: no answer is awaited, so it could only be an end."""
    poll = select.poll()
    try:
        poll.register(sock.fileno(), select.POLLIN)
        return not poll.poll(0)
    except (OSError, ValueError):
        return False
