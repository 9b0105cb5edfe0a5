"""One writer for many streams: short and urgent frames first, then one frame of each stream in turn.

A stream's frame is made only when its turn comes.  So what waits are the stream's own messages, and never a
queue of frames in which a keystroke would have to wait.  Bounds: `URGENT_FRAMES` frames outside the streams'
queues; `BATCH_BYTES` for a batch, which decides how long another stream waits for its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import gevent
from gevent.hub import Waiter, get_hub

URGENT_FRAMES = 128
BATCH_BYTES = 64 * 1024


class Source(Protocol):
    """Something that has frames to write."""

    def take_frame(self) -> bytes | None:
        """Return the next frame, made now; None when there is nothing to write for the moment."""

    @property
    def has_frames(self) -> bool:
        """True if there may be another frame; False only if there is none."""


class FairWriter:
    """Feeds one connection; `write` takes framed bytes and blocks while the peer does not read.

    `frame` returns the buffers to write for a message; nothing has to join them.  `write_at_once` writes what
    the kernel takes now and returns the rest; None for a connection that cannot do that.
    """

    def __init__(
        self,
        frame: Callable[[bytes], list[bytes]],
        write: Callable[[list[bytes]], None],
        write_at_once: Callable[[list[bytes]], list[bytes]] | None = None,
    ) -> None:
        self._frame = frame
        self._write = write
        self._write_at_once = write_at_once
        self._rest: list[bytes] = []  # of a batch that `flush_at_once` has begun; nothing may come before it
        self._urgent: deque[list[bytes]] = deque()
        self._ready: dict[Source, None] = {}  # in the order of their turns
        self._loop = get_hub().loop
        self._is_look_due = False
        self._idle: Waiter[None] | None = None  # there while `run` has nothing to write
        self._closed = False
        self._is_writing = False
        self._broken: OSError | None = None  # the error of a flush, for `run` to raise

    def urgent(self, message: bytes) -> bool:
        """Write a message before everything else; return False, and drop it, if too many wait."""
        # The contract allows that: its resets are best effort behind 128 messages.
        if len(self._urgent) >= URGENT_FRAMES:
            return False
        self._urgent.append(self._frame(message))
        self._look_soon()
        return True

    def control(self, data: bytes) -> None:
        """Write bytes that are framed already (ping, pong, close) before everything else."""
        # A peer that pings and does not read must not fill memory; the keep-alive then ends the connection.
        if len(self._urgent) < 2 * URGENT_FRAMES:
            self._urgent.append([data])
            self._look_soon()

    def ready(self, source: Source) -> None:
        """Note that a source has something to write; cheap if that is known already."""
        self._ready.setdefault(source)
        self._look_soon()

    def forget(self, source: Source) -> None:
        """Do not ask a source any more."""
        self._ready.pop(source, None)

    def close(self) -> None:
        """Have `run` return once its present write is done; drop everything else."""
        self._closed = True
        self._urgent.clear()
        self._ready.clear()
        self._rest = []
        self._write = _nowhere
        self._write_at_once = None
        self._broken = None
        self._look_soon()

    @property
    def is_inside_a_frame(self) -> bool:
        """True while the peer has a beginning of what was to be written: nothing else may follow that."""
        return self._is_writing or bool(self._rest)

    def flush(self) -> None:
        """Write one batch in this greenlet if the writer is idle; `run` raises an error of it."""
        # Two writers would mix the bytes of their frames.
        if self._closed or self._is_writing or self._broken is not None:
            return
        self._is_writing = True
        try:
            batch = self._batch()
            if batch:
                self._write(batch)
        except OSError as error:
            # Not raised here: the stream that flushes does not own the connection.
            if not self._closed:
                self._broken = error
        finally:
            self._is_writing = False
            self._look_soon()

    def flush_at_once(self) -> None:
        """Write one batch as far as that needs no waiting, if the writer is idle; `run` does what is left."""
        write = self._write_at_once
        if write is None or self._is_writing or self._rest or self._broken is not None:
            return
        if self._urgent or self._ready:
            self._is_writing = True
            try:
                batch = self._batch()
                self._rest = write(batch) if batch else []
            except OSError as error:
                self._broken = error
            finally:
                self._is_writing = False
                self._look_soon()

    def run(self) -> None:
        """Write in this greenlet until `close`.  Raises what `write` raises."""
        while not self._closed:
            if self._broken is not None:
                raise self._broken
            batch = [] if self._is_writing else self._batch()
            if batch:
                self._is_writing = True
                self._write(batch)
                self._is_writing = False
                gevent.sleep(0)  # a write that need not wait gives no other greenlet a turn
            else:
                self._idle = Waiter()
                self._idle.get()

    @property
    def _has_work(self) -> bool:
        return bool(self._urgent or self._ready or self._rest or self._closed or self._broken is not None)

    def _look_soon(self) -> None:
        """Have the loop look whether `run` must go on: most frames are written by a `flush` until then."""
        if self._idle is not None and not self._is_look_due and self._has_work:
            self._is_look_due = True
            self._loop.run_callback(self._look)

    def _look(self) -> None:
        self._is_look_due = False
        if self._has_work and self._idle is not None:
            idle, self._idle = self._idle, None
            idle.switch(None)

    def _batch(self) -> list[bytes]:
        buffers, self._rest = self._rest, []
        while self._urgent:
            buffers += self._urgent.popleft()
        size = sum(map(len, buffers)) if buffers else 0
        while self._ready and size < BATCH_BYTES:
            source = next(iter(self._ready))
            del self._ready[source]
            # A source with more goes to the end of the line; one without is asked again after `ready`.
            message = source.take_frame()
            if message is not None:
                if source.has_frames:
                    self._ready.setdefault(source)
                buffers += self._frame(message)
                size += len(message)
        return buffers


def _nowhere(buffers: list[bytes]) -> None:
    """Drop what is written after the end."""
