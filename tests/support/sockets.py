"""Looks at a socket of another process, for what cannot be seen on the wire, and whether there is IPv6 here.

The kernel lends a copy of a descriptor to whoever may trace its owner (`pidfd_getfd`); `cannot_borrow` says
why that is not allowed here.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.proc import descriptors

_PIDFD_GETFD = 438  # the same number on every architecture


def _borrow(pid: int, descriptor: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    try:
        copy: int = libc.syscall(_PIDFD_GETFD, pidfd, descriptor, 0)
    finally:
        os.close(pidfd)
    if copy < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return copy


def need_ipv6() -> None:
    """Skip a test where nothing can listen at the loopback's IPv6 address."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error.strerror}")


def cannot_borrow() -> str:
    """Return why descriptors of other processes cannot be looked at here; nothing when they can."""
    child = os.fork()
    if not child:
        os.kill(os.getpid(), 19)
        os._exit(0)
    try:
        os.close(_borrow(child, 0))
    except OSError as error:
        return f"pidfd_getfd: {error}"
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    return ""


@contextmanager
def accepted_socket(server_pid: int, peer_address: tuple[str, int]) -> Iterator[socket.socket]:
    """Lend the server's end of the TCP connection whose other end has this address."""
    for number, target in descriptors(server_pid).items():
        if not target.startswith("socket:"):
            continue
        with socket.socket(fileno=_borrow(server_pid, number)) as borrowed:
            if borrowed.family in (socket.AF_INET, socket.AF_INET6) and _peer_of(borrowed) == peer_address:
                yield borrowed
                return
    raise AssertionError(f"the server has no connection from {peer_address}")


def _peer_of(borrowed: socket.socket) -> tuple[str, int] | None:
    try:
        host, port, *_ = borrowed.getpeername()
    except OSError:
        return None  # it listens, or its peer has left
    return host, port
