"""Zygotes whose sockets a keeper holds, and whose records are taken only when they have been noted."""

from __future__ import annotations

import _socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from execserver.services.launch.child import Child
from execserver.services.launch.spawner import Spawner
from execserver.services.launch.zygote_link import PendingStart, ZygoteLink
from execserver.survival.ledger import CHILD, KEY, ZYGOTE
from execserver.zygote.records import Exited, Failed, Record, SpawnRequest, Started, WorkerRequest

if TYPE_CHECKING:
    from execserver.handover.records import PackedLink
    from execserver.survival.keeping import Keeping
    from execserver.zygote.launch import ZygoteProcess


class LookingSocket(_socket.socket):
    """A socket whose record stays in it until the next one is asked for: by then it has been dealt with."""

    _has_looked = False

    def recvmsg(self, size: int, space: int = 0, flags: int = 0, /) -> tuple[bytes, list[Any], int, Any]:
        """Return the next record, and leave it."""
        if self._has_looked:
            self.recv(1)
            self._has_looked = False
        found = super().recvmsg(size, space, flags | _socket.MSG_PEEK)
        self._has_looked = True
        return found


class SurvivingLink(ZygoteLink):
    """A link that notes each child before it is asked for: who is known then, and nobody's, is killed."""

    socket_class = LookingSocket

    def __init__(
        self, keeping: Keeping, process: ZygoteProcess, on_end: Callable[[ZygoteLink], None]
    ) -> None:
        self._ledger = keeping.ledger
        self._noted: set[int] = set()
        super().__init__(process, on_end)

    def begin_start(
        self,
        child: Child,
        request: SpawnRequest | WorkerRequest,
        descriptors: Sequence[int],
        patience_s: float,
    ) -> PendingStart:
        """See `ZygoteLink`."""
        self._note(child.child_id)
        return super().begin_start(child, request, descriptors, patience_s)

    def adopt(self, packed: PackedLink) -> None:
        """See `ZygoteLink`."""
        for child_id, _, _ in packed.children:
            self._note(child_id)
        super().adopt(packed)

    def forget(self) -> None:
        """Drop what was noted: the zygote has ended."""
        for child_id in list(self._noted):
            self._drop(child_id)

    def _take(self, record: Record) -> None:
        if isinstance(record, Started | Failed) and record.request_id not in self.children:
            return  # the server before this one has dealt with it
        super()._take(record)
        if isinstance(record, Exited):
            self._drop(record.child_id)
        elif isinstance(record, Failed):
            self._drop(record.request_id)

    def _note(self, child_id: int) -> None:
        self._noted.add(child_id)
        self._ledger.put(CHILD + b"%d %d" % (self.pid, child_id), b"")

    def _drop(self, child_id: int) -> None:
        self._noted.discard(child_id)
        self._ledger.drop(CHILD + b"%d %d" % (self.pid, child_id))


class SurvivingSpawner(Spawner):
    """The owner of zygotes that outlive this process, if it is killed."""

    def __init__(self, keeping: Keeping, *spawner: Any) -> None:
        self._keeping = keeping
        self._keys: dict[int, int] = {}  # by pid of the zygote
        super().__init__(*spawner)

    def _new_link(self, process: ZygoteProcess) -> ZygoteLink:
        key = self._keys[process.pid] = self._keeping.hold_zygote(process.pid, process.sock_fd)
        self._keeping.ledger.put(ZYGOTE + b"%d" % process.pid, KEY.pack(key))
        return SurvivingLink(self._keeping, process, self._link_ended)

    def _link_ended(self, link: ZygoteLink) -> None:
        assert isinstance(link, SurvivingLink)
        key = self._keys.pop(link.pid)
        super()._link_ended(link)  # ends what it has left; until then that is the keeper's if we are killed
        link.forget()
        self._keeping.ledger.drop(ZYGOTE + b"%d" % link.pid)
        self._keeping.drop([key])
