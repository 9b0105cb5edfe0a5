"""The output spool of one process: on disk, what the log in memory has no room for.

The file has no name and is for the server's user only; it ends with the process's record, or with the server.
Threads write and read it, so a slow disk holds up nothing but the process whose output it is: its pumps wait
while more than `PENDING_BYTES`, or `PENDING_CHUNKS`, are not written.  When the disk is full, or all spools
together have reached the server's limit, spooling ends and says why; what was spooled can still be read.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import gevent
from gevent.event import Event
from gevent.hub import get_hub

from execserver.core.output_log import Chunk, OutputLog, TimedChunk
from execserver.core.spool_index import SEGMENT_BYTES, SEGMENT_CHUNKS, Segment, SpoolIndex, unpack
from execserver.protocol.errors import os_error_text
from execserver.services.clients.attachment import Attachment

if TYPE_CHECKING:
    from execserver.handover.carrier import Incoming, Outgoing
    from execserver.handover.records import PackedSpool

T = TypeVar("T")

PENDING_BYTES: Final = 1024 * 1024  # not written yet, of a process
PENDING_CHUNKS: Final = 65_536


class SpoolBudget:
    """What all spools of a server may hold together, in bytes."""

    __slots__ = ("left",)

    def __init__(self, total: int) -> None:
        self.left = total

    def take(self, wanted: int) -> bool:
        """Take some of it, if there is enough."""
        if wanted > self.left:
            return False
        self.left -= wanted
        return True


class Spool:
    """Takes what a log drops.  `error` says why it takes nothing any more; None while it does."""

    def __init__(self, limit: int, budget: SpoolBudget) -> None:
        self.error: str | None = None
        self._index = SpoolIndex(limit)
        self._budget = budget
        self._fd = -1
        self._file_size = 0
        self._pending: deque[TimedChunk] = deque()
        self._pending_bytes = 0
        self._writing = False
        self._in_threads = 0  # calls that use the descriptor now
        self._closed = False
        self._room: Event | None = None

    @property
    def held_bytes(self) -> int:
        """The output that can be read here."""
        return self._index.held_bytes + self._pending_bytes

    @property
    def oldest_seq(self) -> int | None:
        """The oldest chunk that can be read here; None without any."""
        first = self._index.oldest_seq
        return first if first is not None else self._pending[0].chunk.seq if self._pending else None

    def add(self, dropped: TimedChunk) -> None:
        """Take a chunk; never blocks."""
        if self.error is not None or self._closed:
            return
        self._pending.append(dropped)
        self._pending_bytes += len(dropped.chunk.data)
        if not self._writing and self._fills_a_segment:
            self._writing = True
            gevent.spawn(self._write)

    @property
    def _fills_a_segment(self) -> bool:
        return self._pending_bytes >= SEGMENT_BYTES or len(self._pending) >= SEGMENT_CHUNKS

    @property
    def has_room(self) -> bool:
        """Whether `wait_for_room` would return at once."""
        is_little = self._pending_bytes <= PENDING_BYTES and len(self._pending) <= PENDING_CHUNKS
        return is_little or not self._writing

    def wait_for_room(self) -> None:
        """Block while too much is not written yet."""
        while not self.has_room:
            if self._room is None:
                self._room = Event()
            self._room.wait()

    def seq_before(self, tail_bytes: int | None, since_ms: int | None) -> int:
        """Return the number behind which a reader finds at least so many bytes, and all since a time."""
        places = [0]
        if tail_bytes is not None:
            places.append(self._index.seq_before_last(max(0, tail_bytes - self._pending_bytes)))
        if since_ms is not None:
            places.append(self._index.seq_before_time(since_ms))
        return max(places)

    def next_chunks(self, after_seq: int) -> list[TimedChunk]:
        """Return some chunks behind a number, oldest first; none if there are none here.  May block."""
        while (segment := self._index.segment_after(after_seq)) is not None:
            packed = self._in_thread(partial(os.pread, self._fd, segment.length, segment.offset))
            # Meanwhile it may have been overwritten, and what was read then is something else.
            if segment in self._index:
                return [each for each in unpack(packed) if each.chunk.seq > after_seq]
        return [each for each in self._pending if each.chunk.seq > after_seq]

    def pack(self, out: Outgoing) -> PackedSpool:
        """Return what `restore` makes of a new spool; what a thread writes now is written again."""
        from execserver.handover.records import PackedSpool

        fd = self._fd if self._fd < 0 else out.keep(self._fd)
        place, segments = self._index.pack()
        pending = [(*each.chunk, each.at_ms) for each in self._pending]
        return PackedSpool(fd, self._file_size, self.error, pending, place, segments)  # type: ignore[arg-type]

    def restore(self, packed: PackedSpool, incoming: Incoming) -> None:
        """Become what was packed; called on a new spool."""
        self._fd = packed.fd if packed.fd < 0 else incoming.take(packed.fd)
        # More than there is, if a new server may hold less: then nothing further is spooled.
        self._budget.left -= packed.file_size
        self._file_size, self.error = packed.file_size, packed.error
        self._index.restore(packed.place, [Segment(*each) for each in packed.segments])
        for seq, stream, data, at_ms in packed.pending:
            self.add(TimedChunk(Chunk(seq, stream, data), at_ms))

    def close(self) -> None:
        """Give the file back; also while a thread uses it."""
        self._closed = True
        self._pending.clear()
        self._pending_bytes = 0
        self._give_back()

    def _write(self) -> None:
        while self._fills_a_segment and not self._closed and self.error is None:
            chunks: list[TimedChunk] = []
            size = 0
            for each in self._pending:
                chunks.append(each)
                size += len(each.chunk.data)
                if size >= SEGMENT_BYTES or len(chunks) >= SEGMENT_CHUNKS:
                    break
            self._write_segment(chunks, size)
        self._writing = False
        room, self._room = self._room, None
        if room is not None:
            room.set()

    def _write_segment(self, chunks: list[TimedChunk], size: int) -> None:
        segment, packed = self._index.place(chunks)
        try:
            self._grow(segment)
            written = self._in_thread(lambda: os.pwrite(self._fd, packed, segment.offset))
            if written < len(packed):
                raise OSError(errno.ENOSPC, "")
        except OSError as error:
            self.error = os_error_text(error.errno) if error.errno else str(error)
            self._pending.clear()
            self._pending_bytes = 0
            return
        if self._closed:
            return
        for _ in chunks:  # until now readers found them in memory
            self._pending.popleft()
        self._pending_bytes -= size
        self._index.add(segment)
        room, self._room = self._room, None
        if room is not None:
            room.set()

    def _grow(self, segment: Segment) -> None:
        if self._fd < 0:
            self._fd = self._in_thread(_nameless_file)
        more = segment.offset + segment.length - self._file_size
        if more > 0:
            if not self._budget.take(more):
                raise OSError("the spools of the server are full")
            self._file_size += more

    def _in_thread(self, function: Callable[[], T]) -> T:
        self._in_threads += 1
        try:
            # An error comes as a value: what a thread raises, the hub would print.
            found: T | OSError = get_hub().threadpool.apply(_outcome, (function,))
            if isinstance(found, OSError):
                raise found
            return found
        finally:
            self._in_threads -= 1
            if self._closed:
                self._give_back()

    def _give_back(self) -> None:
        if self._in_threads:
            return
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        size, self._file_size = self._file_size, 0
        self._budget.left += size


class SpoolPace:
    """When the pumps of a spooled process may read: both its client and its spool have room."""

    __slots__ = ("_attachment", "_spool")

    def __init__(self, attachment: Attachment, spool: Spool) -> None:
        self._attachment = attachment
        self._spool = spool

    @property
    def has_room(self) -> bool:
        """Return whether little is queued, here and there."""
        return self._spool.has_room and self._attachment.has_room

    @property
    def may_go_on(self) -> bool:
        """Return whether `wait_for_room` would return at once."""
        return self._spool.has_room and self._attachment.may_go_on

    def wait_for_room(self) -> None:
        """Block a pump while there is no room."""
        self._attachment.wait_for_room()
        self._spool.wait_for_room()


def _outcome(function: Callable[[], T]) -> T | OSError:
    try:
        return function()
    except OSError as error:
        return error


def spooled(log: OutputLog, limit: int, budget: SpoolBudget) -> Spool:
    """Return a spool that takes what a log drops from now on."""
    spool = Spool(limit, budget)
    log.on_drop = spool.add
    return spool


def _nameless_file() -> int:
    """Open a new file without a name, in $TMPDIR or else /var/tmp: /tmp is more often in memory."""
    import tempfile  # late: it loads much

    usual = "/var/tmp" if os.access("/var/tmp", os.W_OK) else tempfile.gettempdir()
    folder = os.environ.get("TMPDIR") or usual
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        fd, name = tempfile.mkstemp(
            prefix="execserver-spool-", dir=folder
        )  # a file system without such files
        os.unlink(name)
        return fd
