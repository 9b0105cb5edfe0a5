"""Whose connection arrived: a port of loopback is open to every user of the machine.

The kernel tells the user of the socket at the other end, by netlink or, where there is none, by
`/proc/net/tcp`.  The server's own user and root may use a proxy: they could read the memory of the process it
is for.  Another user's socket has to be held by a descendant of that process, such as the user that a package
manager becomes.  Where nothing can be told, nobody is let in: so it is with a socket that its user has
closed, of which the kernel says that it is root's and has no inode.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator

_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_NETLINK_SOCK_DIAG = 4
_LOOPBACK = socket.inet_aton("127.0.0.1")
_ANY_COOKIE = b"\xff" * 8
_ALL_STATES = 0xFFFFFFFF
# length, type, flags, sequence, port; then family, protocol, extensions, padding, states
_REQUEST = struct.Struct("=IHHIIBBBBI")
_PORTS = struct.Struct(">HH")  # of the other end and ours, in the order of the network
_PLACE = struct.pack("=16s16sI8s", _LOOPBACK, _LOOPBACK, 0, _ANY_COOKIE)  # addresses, interface, cookie
_REQUEST_BYTES = _REQUEST.size + _PORTS.size + len(_PLACE)
# type and sequence; behind the socket and three numbers user and inode
_ANSWER = struct.Struct(f"=4xH2xI4x4x{_PORTS.size + len(_PLACE)}x12xII")
_MAX_DESCENDANTS = 4096
_MAX_STRANGERS = 256
_STRANGER_S = 1.0  # looking through /proc takes milliseconds, and anybody can connect

Place = tuple[str, int]


class Owner:
    """Who holds a socket: user id, and the inode of the socket."""

    __slots__ = ("inode", "uid")

    def __init__(self, uid: int, inode: int) -> None:
        self.uid = uid
        self.inode = inode


class Peers:
    """Tells who is at the other end of a connection over loopback.  Never blocks for long."""

    def __init__(self) -> None:
        self._netlink: socket.socket | None = None
        self._sequence = 0
        self._own = frozenset((os.geteuid(), 0))
        self._strangers: dict[int, float] = {}  # users that were refused, and until when nobody looks again

    def close(self) -> None:
        """Close the netlink socket."""
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None

    def may_use(self, client: Place, proxy_port: int, leader: int) -> bool:
        """Return whether the peer at `client` may use the proxy of a process.

        `leader` is the pid of the process; 0 while it does not run yet.
        """
        owner = self.owner(client, proxy_port)
        if owner is None or not owner.inode:
            return False
        return owner.uid in self._own or self._is_below(leader, owner)

    def _is_below(self, leader: int, owner: Owner) -> bool:
        # Only root sees the descriptors of other users' processes.
        if not leader or os.geteuid():
            return False
        now = time.monotonic()
        if self._strangers.get(owner.uid, 0.0) > now:
            return False
        if _is_held_below(leader, owner.inode):
            return True
        if len(self._strangers) >= _MAX_STRANGERS:
            self._strangers.clear()
        self._strangers[owner.uid] = now + _STRANGER_S
        return False

    def owner(self, client: Place, proxy_port: int) -> Owner | None:
        """Return who holds the other end, None if the kernel does not tell."""
        if client[0] != "127.0.0.1":
            return None
        try:
            return self._ask(client[1], proxy_port)
        except OSError:
            self.close()  # an answer that comes late would be taken for that to the next question
            return _from_proc(client[1], proxy_port)

    def _ask(self, client_port: int, proxy_port: int) -> Owner:
        if self._netlink is None:
            raw = socket.SOCK_RAW | socket.SOCK_CLOEXEC
            self._netlink = socket.socket(socket.AF_NETLINK, raw, _NETLINK_SOCK_DIAG)
            self._netlink.setblocking(False)  # the kernel answers within the call that sends
        self._sequence += 1
        head = (_REQUEST_BYTES, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, self._sequence, 0)
        kind = (socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _ALL_STATES)
        self._netlink.send(_REQUEST.pack(*head, *kind) + _PORTS.pack(client_port, proxy_port) + _PLACE)
        answer = self._netlink.recv(4096)
        if len(answer) >= _ANSWER.size:
            answered, sequence, uid, inode = _ANSWER.unpack_from(answer)
            if answered == _SOCK_DIAG_BY_FAMILY and sequence == self._sequence:
                return Owner(uid, inode)
        raise OSError(0, "no answer of sock_diag")


def _from_proc(client_port: int, proxy_port: int) -> Owner | None:
    """Find a connection in the kernel's list."""
    address = f"{int.from_bytes(_LOOPBACK, 'little'):08X}"
    if struct.pack("=H", 1) != struct.pack("<H", 1):
        address = f"{int.from_bytes(_LOOPBACK):08X}"
    wanted = [f"{address}:{client_port:04X}", f"{address}:{proxy_port:04X}"]
    try:
        with open("/proc/net/tcp", encoding="ascii") as table:
            for line in table:
                columns = line.split()
                if columns[1:3] == wanted:
                    return Owner(int(columns[7]), int(columns[9]))
    except OSError:
        return None
    return None


def _is_held_below(leader: int, inode: int) -> bool:
    """Return whether a process has a socket open that descends from another, or is of its session."""
    link = f"socket:[{inode}]"
    return any(_holds(pid, link) for pid in _descendants(leader))


def _descendants(leader: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    found: list[int] = [leader]
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parent, _, session = file.read().rpartition(b") ")[2].split()[1:4]
        except (OSError, ValueError):
            continue  # it ended meanwhile
        if int(session) == leader:
            found.append(int(name))
        else:
            children.setdefault(int(parent), []).append(int(name))
    seen: set[int] = set()
    while found and len(seen) < _MAX_DESCENDANTS:
        pid = found.pop()
        if pid not in seen:
            seen.add(pid)
            yield pid
            found += children.get(pid, ())


def _holds(pid: int, link: str) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        return any(_target(f"{folder}/{name}") == link for name in os.listdir(folder))
    except OSError:
        return False


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
