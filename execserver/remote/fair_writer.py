"""One writer for many streams: what is short and urgent first, then one frame of each stream in turn.

A stream's frame is made only when its turn has come, so what waits is the stream's own messages and never a
pile of frames in which a keystroke would have to queue.  Bounds: `URGENT_FRAMES` frames that belong to no
stream's queue; of each batch `BATCH_BYTES`, about the time until another stream's turn comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import gevent
from gevent.event import Event

URGENT_FRAMES = 128
BATCH_BYTES = 64 * 1024


class Source(Protocol):
    """Something that has frames to write."""

    def take_frame(self) -> bytes | None:
        """Return the next frame, made now; None when there is nothing to write for the moment."""

    @property
    def has_frames(self) -> bool:
        """Tell whether to ask for another one; False only where there is none."""


class FairWriter:
    """Feeds one connection; `write` takes framed bytes and blocks while the peer does not read.

    `frame` makes of a message what is written for it; both speak of buffers, which nobody has to join.
    """

    def __init__(self, frame: Callable[[bytes], list[bytes]], write: Callable[[list[bytes]], None]) -> None:
        self._frame = frame
        self._write = write
        self._urgent: deque[list[bytes]] = deque()
        self._ready: dict[Source, None] = {}  # in the order of their turns
        self._due = Event()
        self._closed = False
        self._is_writing = False
        self._broken: OSError | None = None  # what a flush has met

    def urgent(self, message: bytes) -> bool:
        """Write a message before everything else; return False, and drop it, where too many wait."""
        if len(self._urgent) >= URGENT_FRAMES:
            return False
        self._urgent.append(self._frame(message))
        self._due.set()
        return True

    def control(self, data: bytes) -> None:
        """Write bytes that are framed already (ping, pong, close) before everything else."""
        if len(self._urgent) < 2 * URGENT_FRAMES:
            self._urgent.append([data])
            self._due.set()

    def ready(self, source: Source) -> None:
        """Note that a source has something to write; costs nothing where that is known."""
        self._ready.setdefault(source)
        self._due.set()

    def forget(self, source: Source) -> None:
        """Ask a source no more."""
        self._ready.pop(source, None)

    def close(self) -> None:
        """Let `run` return once what it writes now is written; let go of whatever else there is."""
        self._closed = True
        self._urgent.clear()
        self._ready.clear()
        self._write = _nowhere
        self._broken = None
        self._due.set()

    def flush(self) -> None:
        """Write one batch in this greenlet if the writer rests; `run` passes on what fails."""
        if self._closed or self._is_writing or self._broken is not None:
            return
        self._is_writing = True
        try:
            batch = self._batch()
            if batch:
                self._write(batch)
        except OSError as error:
            if not self._closed:
                self._broken = error
        finally:
            self._is_writing = False
            self._due.set()

    def run(self) -> None:
        """Write in this greenlet until `close`; what `write` raises is passed on."""
        while not self._closed:
            if self._broken is not None:
                raise self._broken
            batch = [] if self._is_writing else self._batch()
            if batch:
                self._is_writing = True
                self._write(batch)
                self._is_writing = False
                gevent.sleep(0)  # writing to a socket that takes all gives nobody else a turn
            else:
                self._due.clear()
                self._due.wait()

    def _batch(self) -> list[bytes]:
        buffers = [buffer for frame in self._urgent for buffer in frame]
        self._urgent.clear()
        size = sum(map(len, buffers))
        while self._ready and size < BATCH_BYTES:
            source = next(iter(self._ready))
            del self._ready[source]
            message = source.take_frame()
            if message is not None:
                if source.has_frames:
                    self._ready.setdefault(source)
                buffers += self._frame(message)
                size += len(message)
        return buffers


def _nowhere(buffers: list[bytes]) -> None:
    """Write what nobody waits for any more."""
