"""Which TCP ports somebody listens on, and who: from /proc, in a thread."""

from __future__ import annotations

import ipaddress
import os
import pwd
import struct
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from gevent.hub import get_hub

from execserver.protocol.ports import ListeningPort

MAX_LISTED: Final = 1024
_MAX_DESCRIPTORS = 100_000  # looked at to find who has a socket
_LISTEN = "0A"


class _Socket(NamedTuple):
    host: str
    port: int
    uid: int
    inode: str


def listening(own: Mapping[int, str]) -> tuple[list[ListeningPort], bool]:
    """Return the listening ports and whether some are left out; `own` has process ids by system session.

    Looks in a thread; blocks the calling greenlet only.
    """
    found: tuple[list[ListeningPort], bool] = get_hub().threadpool.apply(_look, (own,))
    return found


def _look(own: Mapping[int, str]) -> tuple[list[ListeningPort], bool]:
    sockets = [each for name in ("tcp", "tcp6") for each in _sockets(f"/proc/net/{name}")]
    cut = len(sockets) > MAX_LISTED
    sockets = sockets[:MAX_LISTED]
    owners = _owners({each.inode for each in sockets})
    return [_described(each, owners.get(each.inode), own) for each in sockets], cut


def _sockets(path: str) -> Iterator[_Socket]:
    try:
        with open(path, encoding="ascii") as table:
            lines = table.read().splitlines()[1:]
    except OSError:
        return  # without IPv6
    for line in lines:
        fields = line.split()
        if fields[3] == _LISTEN:
            host, _, port = fields[1].partition(":")
            yield _Socket(_address(host), int(port, 16), int(fields[7]), fields[9])


def _address(text: str) -> str:
    # Words of 32 bits, each in the order of the machine.
    words = [int(text[place : place + 8], 16) for place in range(0, len(text), 8)]
    return str(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words)))


def _owners(inodes: set[str]) -> dict[str, int]:
    """Return the processes that have these sockets open, as far as this user may look."""
    found: dict[str, int] = {}
    looked_at = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            looked_at += 1
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:[") and target[8:-1] in inodes:
                found.setdefault(target[8:-1], int(pid))
        if looked_at > _MAX_DESCRIPTORS:
            break
    return found


def _described(found: _Socket, pid: int | None, own: Mapping[int, str]) -> ListeningPort:
    return ListeningPort(
        host=found.host,
        port=found.port,
        uid=found.uid,
        user=_user(found.uid),
        pid=pid,
        program=None if pid is None else _program(pid),
        process_id=None if pid is None else own.get(_session_of(pid)),
    )


def _user(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _program(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as name:
            return name.read().rstrip("\n")
    except OSError:
        return None


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0
