"""Answers HTTP on a fresh socket until one request upgrades it (wire contract, section 2)."""

from __future__ import annotations

import socket
import time

from gevent import sleep
from gevent.hub import get_hub

from execserver.services.deadline import at_most
from execserver.settings import Settings
from execserver.wire.handshake import Answer, BadRequest, answer, bad_request, never_a_head, parse_head

_READY_READ = 1
_RECEIVE_BYTES = 8192
_END_OF_HEAD = b"\r\n\r\n"
_HEADER_TOO_LARGE = 431


def upgrade(sock: socket.socket, settings: Settings) -> bytes | None:
    """Serve requests on a non-blocking socket; block until one upgrades it.

    Returns the bytes that came behind the upgrade, or None when the socket is of no further use: the peer
    left, was silent for too long, or sent no HTTP.  The socket stays owned by the caller.
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
        if not reply.keep_alive:
            return None
        sleep(0)  # a peer that asks without pause must not keep the others from being served


def _decide(head: bytes, settings: Settings) -> Answer:
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    if len(head) > settings.max_header_bytes:
        return bad_request(date, _HEADER_TOO_LARGE)
    try:
        return answer(parse_head(head), date)
    except BadRequest:
        return bad_request(date)


def _read_head(sock: socket.socket, received: bytes, settings: Settings) -> tuple[bytes | None, bytes]:
    """Return a request head and what came behind it; no head when the peer left or took too long.

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
                sleep(0)  # a flood of empty lines must meet the time limit, and not stop the others
    return found


def _send(sock: socket.socket, data: bytes) -> bool:
    """Send a short answer at once; a peer that cannot take even that is not worth waiting for."""
    try:
        return sock.send(data) == len(data)
    except OSError:
        return False
