"""Answers HTTP on a fresh socket until one request upgrades it (wire contract, section 2).

A request that would be upgraded meets the door last: who may not come in gets an answer, and may ask again.
"""

from __future__ import annotations

import logging
import socket
import time
from functools import lru_cache
from typing import NamedTuple

from gevent import sleep
from gevent.hub import get_hub

from execserver.access.identity import NOBODY, Identity
from execserver.eventloop.deadline import at_most
from execserver.settings import Settings
from execserver.transports.door import OPEN_DOOR, Door, Refused
from execserver.wire.handshake import (
    Answer,
    BadRequest,
    answer,
    bad_request,
    never_a_head,
    parse_head,
    refusal,
)

_log = logging.getLogger(__name__)

_READY_READ = 1
_RECEIVE_BYTES = 8192
_LINE_ENDS = b"\r\n"
_END_OF_HEAD = b"\r\n\r\n"
_HEADER_TOO_LARGE = 431


class Upgraded(NamedTuple):
    """A socket that is a WebSocket now: the bytes behind the request, and who is at its other end."""

    early: bytes
    identity: Identity


def upgrade_at_once(
    sock: socket.socket, settings: Settings, door: Door = OPEN_DOOR, standing: Identity = NOBODY
) -> Upgraded | bytes | None:
    """Serve the request on a fresh socket if it is here already; never blocks.

    Returns what `upgrade` returns, or the bytes with which `upgrade` has to go on, in a greenlet.
    """
    # Mostly the whole request is here: a greenlet and its stack take longer than all that is done here.
    if door.may_wait:
        return b""
    try:
        received = sock.recv(_RECEIVE_BYTES)
    except BlockingIOError:
        return b""
    except OSError:
        return None
    cut = _cut_head(received.lstrip(_LINE_ENDS), settings)
    if cut is None:
        return received or None
    return _served(sock, *cut, settings, door, standing)


def upgrade(
    sock: socket.socket,
    settings: Settings,
    door: Door = OPEN_DOOR,
    standing: Identity = NOBODY,
    received: bytes = b"",
) -> Upgraded | None:
    """Serve HTTP requests on a non-blocking socket; block until one upgrades it.

    Returns None if the socket is of no further use: the peer left, was silent for too long, or sent something
    other than HTTP.  `standing` is who the connection has proven its peer to be, `received` what has been
    read from it.  The caller still owns the socket.
    """
    while True:
        head, received = _read_head(sock, received, settings)
        if head is None:
            return None
        served = _served(sock, head, received, settings, door, standing)
        if not isinstance(served, bytes):
            return served
        received = served
        sleep(0)  # a peer that sends requests without pause must not keep the others from being served


def _served(
    sock: socket.socket, head: bytes, rest: bytes, settings: Settings, door: Door, standing: Identity
) -> Upgraded | bytes | None:
    """Answer a request; return `rest` where a further one may follow, None if the socket is of no use."""
    reply, identity = _decide(head, settings, door, standing)
    if not _send(sock, reply.data):
        return None
    if identity is not None:
        return Upgraded(rest, identity)
    return rest if reply.keep_alive else None  # the answer has been sent; the caller closes the socket


def _decide(
    head: bytes, settings: Settings, door: Door, standing: Identity = NOBODY
) -> tuple[Answer, Identity | None]:
    """Return the answer to a request, and who sent it if that upgrades the connection."""
    now = time.time()
    date = _date(int(now))
    if len(head) > settings.max_header_bytes:
        return bad_request(date, _HEADER_TOO_LARGE), None
    try:
        request = parse_head(head)
    except BadRequest:
        return bad_request(date), None
    reply = answer(request, date)
    if not reply.upgraded:
        return reply, None
    try:
        return reply, door.admit(request, now, standing)
    except Refused as refused:
        _log.info("not admitted: status=%d reason=%s", refused.status, refused.text)
        return refusal(request, date, refused.status, refused.text), None


@lru_cache(maxsize=1)  # the text of one second serves all answers in it
def _date(second: int) -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(second))


def _read_head(sock: socket.socket, received: bytes, settings: Settings) -> tuple[bytes | None, bytes]:
    """Return a request head and the bytes behind it; no head if the peer left or took too long.

    Line ends before a request are skipped, as RFC 9112 advises.
    """
    received = received.lstrip(_LINE_ENDS)
    deadline = time.monotonic() + settings.upgrade_timeout_s
    while (left := deadline - time.monotonic()) > 0:
        if (cut := _cut_head(received, settings)) is not None:
            return cut
        try:
            data = sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            with at_most(left):
                get_hub().wait(get_hub().loop.io(sock.fileno(), _READY_READ))
            continue
        except OSError:
            break
        if not data:
            break
        received = (received + data).lstrip(_LINE_ENDS)
        if not received:
            sleep(0)  # a flood of empty lines must meet the time limit, and must not stop the others
    return None, b""


def _cut_head(received: bytes, settings: Settings) -> tuple[bytes, bytes] | None:
    """Return a request head, or bytes that can be none, and what is behind it; None if more must come."""
    head, end, rest = received.partition(_END_OF_HEAD)
    return (head, rest) if end or len(head) > settings.max_header_bytes or never_a_head(head) else None


def _send(sock: socket.socket, data: bytes) -> bool:
    """Send a short answer at once; a peer whose receive buffer has no room even for that is dropped."""
    try:
        return sock.send(data) == len(data)
    except OSError:
        return False
