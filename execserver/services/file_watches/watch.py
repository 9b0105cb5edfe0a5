"""One watched tree: a greenlet that reads the kernel's events, and one that sends batches.

The reader never waits for the client, so the kernel's queue is emptied however slow that is; what waits to be
told has a bound (`PendingChanges`).  The sender waits for the client's room, and while the client is away
until it resumes the watch.  The last batches are kept, so that a client that was away gets them again; where
they are not enough, an overflow tells it.

A watch that has ended by itself has freed its descriptor; its last batch is kept until it is closed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import gevent
from gevent.event import Event as Signal
from gevent.hub import get_hub

from execserver.core.pending_changes import Batch, PendingChanges
from execserver.protocol.envelope import encode_notification
from execserver.protocol.errors import InvalidRequest, RpcError, from_os_error
from execserver.protocol.file_watches import FsChangesNotification
from execserver.protocol.files import FsWalkError
from execserver.protocol.own_methods import FS_CHANGES
from execserver.services.clients.attachment import Attachment
from execserver.services.file_watches.events import Events
from execserver.services.file_watches.scan import Budget, Scan, WatchableFiles
from execserver.services.file_watches.telling import Telling

if TYPE_CHECKING:
    from execserver.handover.records import PackedFileWatch

_READ = 1  # event mask of gevent's io watchers
_PAUSE_S: Final = 0.01  # after a read: a busy folder wakes the server 100 times a second
_BUSY_EVENTS: Final = 1000  # of one read, after which there is no pause: the kernel's queue must not run over
_AGAIN_S: Final = 0.25  # before a tree is looked at again: a storm that fills the queue may do so many times
_UPGRADED: Final = "the server was upgraded, and watches no folder any more: look, and watch again"
_BATCH_CHANGES: Final = 256  # judged and written in some milliseconds, before others run
_BATCH_BYTES: Final = 128 * 1024  # of paths
KEPT_BATCHES: Final = 64
KEPT_BYTES: Final = 1024 * 1024


class FileWatch:
    """A watch of one session; `begin` makes it, `start` lets it tell."""

    def __init__(
        self,
        watch_id: str,
        telling: Telling,
        attachment: Attachment,
        budget: Budget,
        coalesce_s: float,
        recursive: bool,
    ) -> None:
        self.watch_id = watch_id
        self.last_seq = 0
        self._telling = telling
        self._attachment = attachment
        self._budget = budget
        self._coalesce_s = coalesce_s
        self._recursive = recursive
        self._stirred = Signal()  # something is to be told, or to be read
        self._readable = Signal()
        self._closing = Signal()
        self._resumed = Signal()
        self._pending = PendingChanges(self._stirred.set)
        self._kept: deque[bytes] = deque()  # the last batches, encoded
        self._kept_bytes = 0
        self._scan: Scan | None = None
        self._ended: str | None = None  # why nothing more is read
        self._told_end = False
        self._closed = False
        self._reader: gevent.Greenlet[[], None] | None = None
        self._sender: gevent.Greenlet[[], None] | None = None

    @property
    def ended(self) -> bool:
        """Whether the watch has ended by itself."""
        return self._ended is not None

    def begin(self, files: WatchableFiles, root: bytes) -> tuple[int, tuple[FsWalkError, ...]]:
        """Watch everything; return how many folders, and which cannot be.  Raises OSError and RpcError."""
        scan = Scan(files, root, self._recursive, self._budget, self._pending, lambda: self._closed)
        if self._closed:
            scan.close()
            raise InvalidRequest(f"watch {self.watch_id} was closed")
        self._scan = scan
        found = self._pending.take(0, 0)
        return len(scan.tree), self._telling.errors(found.errors)

    def start(self) -> None:
        """Begin to read and to send; called once the answer is queued, and by every `resume`."""
        if self._closed:
            return
        if self._reader is None and self._scan is not None:
            self._reader = gevent.spawn(self._read)
        if self._sender is None and not self._told_end:
            self._sender = gevent.spawn(self._send)

    def check(self, after_seq: int) -> None:
        """Raise InvalidRequest for a batch that was never made."""
        if after_seq > self.last_seq:
            raise InvalidRequest(f"watch {self.watch_id}: only {self.last_seq} batches were sent")

    def resume(self, after_seq: int) -> None:
        """Send again what a client that was away has not got, and go on."""
        first = self.last_seq - len(self._kept) + 1
        if after_seq + 1 < first:
            self._kept.clear()
            self._kept_bytes = 0
            self._told_end = False
            self._pending.overflow("the client was away, and not all batches were kept")
        else:
            for _ in range(after_seq + 1 - first):
                self._kept_bytes -= len(self._kept.popleft())
            for batch in list(self._kept):
                self._attachment.send(batch)
        self.start()
        self._resumed.set()

    def pack(self) -> PackedFileWatch:
        """Return what `restore` takes: a watch that has ended, and says why in its last batch."""
        from execserver.handover.records import PackedFileWatch

        if self._told_end:
            return PackedFileWatch(self.watch_id, self.last_seq, list(self._kept), False)
        note = FsChangesNotification(
            watch_id=self.watch_id,
            seq=self.last_seq + 1,
            changes=(),
            errors=(),
            overflow=True,
            ended=True,
            reason=self._ended or _UPGRADED,
        )
        batches = [*self._kept, encode_notification(FS_CHANGES.name, note)]
        return PackedFileWatch(self.watch_id, self.last_seq + 1, batches, True)

    def restore(self, packed: PackedFileWatch) -> None:
        """Become what was packed, and tell the end; called on a new watch that has not begun."""
        self.last_seq, self._ended, self._told_end = packed.last_seq, _UPGRADED, True
        for batch in packed.kept:
            self._keep(batch)
        if packed.untold:
            self._attachment.send(packed.kept[-1])

    def close(self) -> None:
        """End the watch; the client is told nothing.  Its reader frees the descriptor."""
        self._closed = True
        self._closing.set()
        self._readable.set()
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.kill(block=False)
        if self._reader is None:
            self._let_go()

    # --- reading -----------------------------------------------------------------------------------------

    def _read(self) -> None:
        scan = self._scan
        assert scan is not None
        reason = "the watch has failed"
        try:
            reason = self._read_until_ended(scan)
        except (OSError, RpcError) as error:
            found = from_os_error(error) if isinstance(error, OSError) else error
            reason = f"the root is gone, or cannot be read: {found.message}"
        finally:
            self._let_go()
            self._reader = None
            self._ended = reason
            self._stirred.set()

    def _read_until_ended(self, scan: Scan) -> str:
        events = Events(scan, self._recursive, self._pending)
        while not self._closed:
            found = scan.inotify.read()
            if not found and events.moving:
                self._closing.wait(_PAUSE_S)  # the second half of a rename may be on its way
                found = scan.inotify.read()
                if not found:
                    events.settle()
            if not found:
                self._wait(scan.inotify.fd)
                continue
            events.take(found)
            if events.ended is not None:
                return f"the folder was {events.ended}"
            if events.lost is not None:
                self._look_again(scan, events)
            if len(found) > _BUSY_EVENTS:
                gevent.sleep(0)
            else:
                self._closing.wait(_PAUSE_S)
        return "closed"

    def _wait(self, fd: int) -> None:
        """Wait for an event, or for `close`."""
        self._readable.clear()
        if self._closed:
            return
        watcher = get_hub().loop.io(fd, _READ)
        watcher.start(self._readable.set)
        try:
            self._readable.wait()
        finally:
            watcher.stop()
            watcher.close()

    def _look_again(self, scan: Scan, events: Events) -> None:
        reason = events.lost or ""
        self._closing.wait(_AGAIN_S)
        events.forget()
        scan.again()
        # Only now: a client that looks again must miss nothing of what comes after its look.
        self._pending.overflow(reason)

    def _let_go(self) -> None:
        scan, self._scan = self._scan, None
        if scan is not None:
            scan.close()

    # --- sending -----------------------------------------------------------------------------------------

    def _send(self) -> None:
        while not self._told_end:
            self._stirred.wait()
            self._stirred.clear()
            if self._ended is None:
                gevent.sleep(self._coalesce_s)
            while (self._pending or self._ended is not None) and not self._told_end:
                self._wait_for_client()
                self._send_one()
                gevent.sleep(0)
        self._sender = None

    def _wait_for_client(self) -> None:
        while True:
            self._attachment.wait_for_room()
            if self._attachment.sink is not None:
                return
            self._resumed.clear()
            self._resumed.wait()

    def _send_one(self) -> None:
        batch = self._pending.take(_BATCH_CHANGES, _BATCH_BYTES)
        ended = self._ended is not None and not self._pending
        note = self._note(batch, ended)
        if not (note.changes or note.errors or note.overflow or note.ended):
            return  # nothing of it may be seen
        self.last_seq += 1
        self._told_end = ended
        message = encode_notification(FS_CHANGES.name, note)
        self._keep(message)
        self._attachment.send(message)

    def _note(self, batch: Batch, ended: bool) -> FsChangesNotification:
        reason = batch.overflow
        try:
            changes, errors = self._telling.changes(batch.changes), self._telling.errors(batch.errors)
        except (OSError, RpcError) as error:
            found = from_os_error(error) if isinstance(error, OSError) else error
            changes, errors, reason = (), (), f"what may be seen is not certain: {found.message}"
        overflow = reason is not None
        return FsChangesNotification(
            watch_id=self.watch_id,
            seq=self.last_seq + 1,
            changes=changes,
            errors=errors,
            overflow=overflow,
            ended=ended,
            reason=self._ended if ended else reason,
        )

    def _keep(self, message: bytes) -> None:
        self._kept.append(message)
        self._kept_bytes += len(message)
        while len(self._kept) > KEPT_BATCHES or self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft())
