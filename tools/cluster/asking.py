"""One HTTP request at a time, waiting in the event loop, so that streams beside it go on."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import NamedTuple

from gevent import socket

_ANSWER_S = 10.0


class Answer(NamedTuple):
    """An answer; status 0 where none came."""

    status: int
    body: bytes = b""


def ask(place: str, path: str, body: str | None = None, headers: Mapping[str, str] | None = None) -> Answer:
    """GET a path at `HOST:PORT`, or POST a body to it."""
    connection = http.client.HTTPConnection(place, timeout=_ANSWER_S)
    try:
        connection.sock = socket.create_connection((connection.host, connection.port), _ANSWER_S)
        connection.request("GET" if body is None else "POST", path, body, dict(headers or {}))
        response = connection.getresponse()
        return Answer(response.status, response.read())
    except (OSError, http.client.HTTPException):
        return Answer(0)
    finally:
        connection.close()
