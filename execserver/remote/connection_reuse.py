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

from execserver.http_client.exchange import Exchange
from execserver.http_client.fetch import Answer, Deadline, DeadlinePassed, Fetcher, encoded, not_answered
from execserver.http_client.proxy import Proxy
from execserver.http_client.request import PreparedRequest
from execserver.http_client.response_events import BrokenResponse

KEPT_CONNECTIONS = 4
KEPT_S = 45.0  # many servers close what was silent for a minute


_METHOD = "POST"  # what all calls of a registry are


class _Kept(NamedTuple):
    place: tuple[str, tuple[str, int]]
    exchange: Exchange  # for the next request
    silence: select.poll
    proxy: Proxy | None
    until: float


class ReusingFetcher(Fetcher):
    """A `Fetcher` with connection reuse and without redirects; owns the connections it keeps."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(environ, 0)
        self._kept: list[_Kept] = []
        self._closed = False

    def keep(self, request: PreparedRequest, exchange: Exchange) -> bool:
        """Take over the connection of a finished exchange; return False if it cannot be reused."""
        released = None if self._closed else exchange.release()
        if released is None:
            return False
        sock, would_block = released
        silence = select.poll()
        silence.register(sock.fileno(), select.POLLIN)
        following, until = Exchange(sock, _METHOD, would_block), time.monotonic() + KEPT_S
        self._kept.append(
            _Kept(_place(request), following, silence, self._proxies.proxy_for(request.url), until)
        )
        if len(self._kept) > KEPT_CONNECTIONS:
            self._kept.pop(0).exchange.close()
        return True

    def close(self) -> None:
        """Close all kept connections, and keep none from now on."""
        self._closed = True
        for kept in self._kept:
            kept.exchange.close()
        self._kept.clear()

    def begin(self, request: PreparedRequest) -> Exchange | None:
        """Send a request over a kept connection, without waiting; None, and nothing is done, without one.

        `finish` waits for the answer.
        """
        kept = self._take(_place(request)) if request.method == _METHOD else None
        if kept is None:
            return None
        kept.exchange.send(encoded(request, kept.proxy))
        return kept.exchange

    def finish(self, request: PreparedRequest, begun: Exchange) -> Answer:
        """Return the answer to what `begin` has sent once its head has arrived.  Raises RequestFailed."""
        deadline = Deadline(request.timeout_s)
        try:
            with deadline.running():
                return Answer(begun.receive_head(), begun, deadline)
        except (OSError, BrokenResponse):
            begun.close()  # closed in the same moment
        except DeadlinePassed as passed:
            begun.close()
            raise not_answered(request.url.text) from passed
        except BaseException:
            begun.close()
            raise
        return super().fetch(request, deadline)

    def fetch(self, request: PreparedRequest, deadline: Deadline | None = None) -> Answer:
        """Return the answer once its head has arrived.  Raises RequestFailed."""
        begun = self.begin(request)
        return super().fetch(request, deadline) if begun is None else self.finish(request, begun)

    def _take(self, place: tuple[str, tuple[str, int]]) -> _Kept | None:
        """Return the newest usable connection to an address; close the expired and those no longer silent."""
        found: _Kept | None = None
        now = time.monotonic()
        for kept in reversed(list(self._kept)):
            # No answer is awaited, so what has arrived could only be the end of the connection.
            if now >= kept.until or kept.silence.poll(0):
                self._kept.remove(kept)
                kept.exchange.close()
            elif found is None and kept.place == place:
                self._kept.remove(kept)
                found = kept
        return found


def _place(request: PreparedRequest) -> tuple[str, tuple[str, int]]:
    return request.url.scheme, request.url.address
