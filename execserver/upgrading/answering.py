"""Answers one request for an upgrade: looks at who asks, and at the file that is asked for.

A request is one message of at most `_MESSAGE_BYTES`, with the descriptor of a file or none.  Whoever sends
none within `_ASK_S` is dropped.  The answer to one that leads to an upgrade comes from the new program.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

import gevent
import msgspec
from gevent.hub import get_hub

from execserver.handover.asking import Asker
from execserver.handover.program import BadProgram, Program
from execserver.own_start import own_start
from execserver.upgrading.upgrade import NotUpgraded, Upgrade

_MESSAGE_BYTES: Final = 8192
_ASK_S: Final = 5.0
_READ: Final = 1
_NO_REQUEST: Final = "the request is none"


class Request(msgspec.Struct):
    """What is asked for: the file's name for people, or none for the server's own file."""

    file: str | None = None


def answer(sock: socket.socket, upgrade: Upgrade) -> None:
    """Do what a peer asks for; the caller closes the socket.  Returns if that cannot be."""
    sock.setblocking(False)
    asker = Asker(sock)
    who = f"pid {asker.pid}, user {asker.uid}"
    try:
        program = _program(sock, asker.objection(upgrade.kind))
    except BadProgram as error:
        why = str(error)
        upgrade.refused("a file", who, why)
    else:
        why = _ask(program, who, sock, upgrade)
    try:
        sock.send(msgspec.json.encode({"refused": why}))
    except OSError:
        pass  # it has not waited


def _ask(program: Program, who: str, sock: socket.socket, upgrade: Upgrade) -> str:
    """Become the program; returns why that cannot be."""
    try:
        upgrade.run(program, who, sock.fileno())
    except NotUpgraded as error:
        return str(error)
    raise AssertionError("there is another program now")


def _program(sock: socket.socket, objection: str | None) -> Program:
    """Take the request of a peer, and return the program that it names.  Raises BadProgram."""
    watcher = get_hub().loop.io(sock.fileno(), _READ)
    try:
        with gevent.Timeout(_ASK_S):
            get_hub().wait(watcher)
        data, fds = _message(sock)
    except (gevent.Timeout, OSError):
        raise BadProgram("no request came") from None
    finally:
        watcher.close()
    # Only now: a peer whose message is not read loses the answer.
    found = _request(data, len(fds)) if objection is None else objection
    if isinstance(found, str):
        for fd in fds:
            os.close(fd)
        raise BadProgram(found)
    if found.file is None:
        return Program.own(own_start())
    return Program.given(fds[0], found.file, own_start())


def _request(data: bytes, descriptors: int) -> Request | str:
    """Return a request, or what is wrong with it."""
    try:
        request = msgspec.json.decode(data, type=Request)
    except msgspec.DecodeError:
        return _NO_REQUEST
    return request if descriptors == (request.file is not None) else _NO_REQUEST


def _message(sock: socket.socket) -> tuple[bytes, list[int]]:
    data, ancillary, _, _ = sock.recvmsg(_MESSAGE_BYTES, socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds += struct.unpack(f"{len(content) // 4}i", content[: len(content) // 4 * 4])
    return data, fds
