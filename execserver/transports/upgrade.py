"""Answers HTTP on a fresh socket until one request upgrades it (wire contract, section 2)."""

from __future__ import annotations

import socket
import time
from functools import lru_cache

from gevent import sleep
from gevent.hub import get_hub

from execserver.eventloop.deadline import at_most
from execserver.settings import Settings
from execserver.wire.handshake import Answer, BadRequest, answer, bad_request, never_a_head, parse_head

_READY_READ = 1
_RECEIVE_BYTES = 8192
_END_OF_HEAD = b"\r\n\r\n"
_HEADER_TOO_LARGE = 431


def upgrade(sock: socket.socket, settings: Settings) -> bytes | None:
    """Serve HTTP requests on a non-blocking socket; block until one upgrades it.

    Returns the bytes behind the upgrade request, or None if the socket is of no further use: the peer left,
    was silent for too long, or sent something other than HTTP.  The caller still owns the socket.
    """
    received = b""
    while True:
        head, received = _read_head(sock, received, settings)
        if head is None:
            return None
        reply = _decide(head, settings)
        if not _send(sock, reply.data):
            return None
        if reply.upgraded:
            return received
        if not reply.keep_alive:  # the answer has been sent; the caller closes the socket
            return None
        sleep(0)  # a peer that sends requests without pause must not keep the others from being served


def _decide(head: bytes, settings: Settings) -> Answer:
    date = _date(int(time.time()))
    if len(head) > settings.max_header_bytes:
        return bad_request(date, _HEADER_TOO_LARGE)
    try:
        return answer(parse_head(head), date)
    except BadRequest:
        return bad_request(date)


@lru_cache(maxsize=1)  # the text of one second serves all answers in it
def _date(second: int) -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(second))


def _read_head(sock: socket.socket, received: bytes, settings: Settings) -> tuple[bytes | None, bytes]:
    """Return a request head and the bytes behind it; no head if the peer left or took too long.

    Line ends before a request are skipped, as RFC 9112 advises.
    """
    received = received.lstrip(b"\r\n")
    watcher = get_hub().loop.io(sock.fileno(), _READY_READ)
    found: tuple[bytes | None, bytes] = (None, b"")
    with at_most(settings.upgrade_timeout_s):
        while found[0] is None:
            head, end, rest = received.partition(_END_OF_HEAD)
            if end or len(head) > settings.max_header_bytes or never_a_head(head):
                found = head, rest
                continue
            try:
                data = sock.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                get_hub().wait(watcher)
                continue
            except OSError:
                data = b""
            if not data:
                break
            received = (received + data).lstrip(b"\r\n")
            if not received:
                sleep(0)  # a flood of empty lines must meet the time limit, and must not stop the others
    return found


def _send(sock: socket.socket, data: bytes) -> bool:
    """Send a short answer at once; a peer whose receive buffer has no room even for that is dropped."""
    try:
        return sock.send(data) == len(data)
    except OSError:
        return False
