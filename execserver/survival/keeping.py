"""A server's end of the line to its keeper: what that is to hold, and what it is to let go.

When the keeper is gone, the server must end: nobody would start it again, and whoever started it waits for
the keeper.  Standard library only.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import os

from execserver.survival import messages
from execserver.survival.ledger import Ledger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence

KEEPER_VARIABLE = "EXECSERVER_KEEPER"  # the descriptor of the socket to the keeper
# A keeper starts a server with these blocked.  Before they are handled, the interpreter would make a
# traceback of the one, and the keeper take the other for a kill, behind which it starts the next server.
HELD = (_signal.SIGINT, _signal.SIGTERM)
LEDGER = 0  # the key of the ledger's journal
_FIRST = 1
_RESERVE = 64  # descriptors that a keeper needs for itself


class Keeping:
    """What a keeper holds for this server.

    `table` has the descriptors of a server before this one, by key; they are this process's to close.
    `cause` says how that one ended, empty if there was none.
    """

    def __init__(self, sock: _socket.socket) -> None:
        """Take over what was held.  Raises OSError, BadMessage."""
        self._sock = sock
        self.table: dict[int, int] = {}
        self.cause = self._take_over()
        self._below = self._next = max(self.table, default=_FIRST - 1) + 1
        self._held: set[int] = set()
        self._is_lost = False
        self._on_lost: Callable[[], None] = lambda: None
        self.ledger = Ledger(lambda fd: self._send(messages.HOLD, [LEDGER], [fd]))

    def _take_over(self) -> str:
        while (message := messages.receive(self._sock)) is not None:
            if message.kind == messages.BEGIN:
                return message.text.decode(errors="replace")
            self.table.update(zip(message.numbers, message.fds, strict=True))
        raise BrokenPipeError("the keeper has ended")

    @property
    def fd(self) -> int:
        """The socket, which becomes readable when the keeper is gone."""
        return self._sock.fileno()

    @property
    def has_room(self) -> bool:
        """Whether another process can be kept: over a restart a keeper holds everything twice."""
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = (hard - _RESERVE) // 2
        return hard == resource.RLIM_INFINITY or len(self._held) + messages.MOST_DESCRIPTORS < most

    def hold(self, fds: Sequence[int]) -> list[int]:
        """Have descriptors held, which the caller keeps; return their keys."""
        keys = self._taken(len(fds))
        self._send(messages.HOLD, keys, fds)
        return keys

    def hold_zygote(self, pid: int, fd: int) -> int:
        """Have the socket of a zygote held, whose orphans are the keeper's to end; return its key."""
        keys = self._taken(1)
        self._send(messages.ZYGOTE, [pid, *keys], [fd])
        return keys[0]

    def drop(self, keys: Sequence[int]) -> None:
        """Have descriptors closed."""
        known = [key for key in keys if key in self._held]
        if known:
            self._held.difference_update(known)
            self._send(messages.DROP, known)

    def publish(self) -> None:
        """Let what this server has written be what counts, and not what the one before it has."""
        self.ledger.publish()
        self._send(messages.DROP_BELOW, [self._below])

    def ready(self, on_lost: Callable[[], None]) -> None:
        """Say that the server serves; `on_lost` is called once the keeper is gone, at once if it is."""
        self._on_lost = on_lost
        if self._is_lost:
            on_lost()
        self._send(messages.READY)

    def tell(self, text: bytes) -> None:
        """Have the service manager told."""
        self._send(messages.TELL, text=text)

    def lost(self) -> None:
        """Note that the keeper is gone."""
        if not self._is_lost:
            self._is_lost = True
            self._on_lost()

    def _taken(self, number: int) -> list[int]:
        keys = list(range(self._next, self._next + number))
        self._next += number
        self._held.update(keys)
        return keys

    def _send(
        self, kind: int, numbers: Sequence[int] = (), fds: Sequence[int] = (), text: bytes = b""
    ) -> None:
        if self._is_lost:
            return
        try:
            messages.send(self._sock, kind, numbers, fds, text)
        except OSError:
            self.lost()


def keeping_of(environ: MutableMapping[str, str]) -> Keeping | None:
    """Return what a variable of the environment leads to, and take that away; None without it.

    The signals that a keeper holds back come from here on.  Raises OSError, BadMessage, ValueError.
    """
    number = environ.pop(KEEPER_VARIABLE, None)
    if number is None:
        return None
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, HELD)
    fd = int(number)
    os.set_inheritable(fd, False)
    return Keeping(_socket.socket(fileno=fd))
