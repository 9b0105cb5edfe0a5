"""Harnesses that read what commands print, compare hashes, and note for how long nothing came.

A `Stream` runs a generator of random bytes on the executor of one environment, which counts and hashes what
it prints and tells both at its end.  All streams of a process are greenlets of one thread: whoever waits for
something meanwhile waits with `gevent.sleep`.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import gevent

from execserver.client import (
    ExecServerClient,
    ExecServerClientConnectOptions,
    Output,
    RemoteExecServerConnectArgs,
)
from tools.problems import Failed

EVERY_S = 0.02
BLOCK_BYTES = 4096
_END_S = 30.0
# Prints blocks until its input ends, then on stderr how much it was and its hash.
GENERATOR = """
import hashlib, os, select, sys
digest, size = hashlib.sha256(), 0
while not select.select([0], [], [], float(sys.argv[1]))[0]:
    block = os.urandom(int(sys.argv[2]))
    digest.update(block)
    size += len(block)
    sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
print(size, digest.hexdigest(), file=sys.stderr)
"""


class Result(NamedTuple):
    """What became of one stream."""

    size: int
    is_whole: bool  # every byte, in order
    resumptions: int  # sessions that had to be resumed, because a stream was lost


def connect(url: str, environment_id: str, token: str) -> ExecServerClient:
    """Connect to the executor of an environment."""
    options = ExecServerClientConnectOptions(connect_timeout=5.0)
    args = RemoteExecServerConnectArgs(url=url, environment_id=environment_id, token=token, options=options)
    return ExecServerClient.connect_remote(args)


class Stream:
    """One harness, reading from one command until `end`."""

    def __init__(self, client: ExecServerClient, python: str = sys.executable) -> None:
        """Take over the client, and start."""
        self._client = client
        command = [python, "-c", GENERATOR, str(EVERY_S), str(BLOCK_BYTES)]
        self._process = client.start(command, pipe_stdin=True)
        self._digest, self.size = hashlib.sha256(), 0
        self._told = b""
        self._arrived = self._marked = time.monotonic()
        self._worst = 0.0
        self._reader = gevent.spawn(self._read)

    def mark(self) -> None:
        """Measure pauses anew."""
        self._marked, self._worst = time.monotonic(), 0.0

    def worst_pause(self) -> float:
        """Return the longest time without a byte since the mark, the present one included, in seconds."""
        return max(self._worst, time.monotonic() - max(self._arrived, self._marked))

    @property
    def arrived(self) -> float:
        """The moment of the last byte, by `time.monotonic`."""
        return self._arrived

    def has_data_since(self, moment: float) -> bool:
        """Tell whether a byte arrived after a moment of `time.monotonic`.  Raises what ended the stream."""
        if self._reader.ready():
            self._reader.get()
        return self._arrived > moment

    def end(self) -> Result:
        """Stop the command, read the rest, close the client.  Raises Failed, and what ended the stream."""
        self._process.close_stdin()
        self._reader.join(_END_S)
        if not self._reader.ready():
            raise Failed("a stream does not end")
        self._reader.get()
        size, digest = self._told.decode().split()
        is_whole = (int(size), digest) == (self.size, self._digest.hexdigest())
        resumptions = self._client.resumptions
        self._client.close()
        return Result(self.size, is_whole, resumptions)

    def drop(self) -> None:
        """Give up: close the client, whatever the state."""
        self._reader.kill()
        self._client.close()

    def _read(self) -> None:
        for event in self._process:
            if not isinstance(event, Output):
                continue
            if event.stream == "stderr":
                self._told += event.data
                continue
            now = time.monotonic()
            self._worst = max(self._worst, now - max(self._arrived, self._marked))
            self._arrived = now
            self._digest.update(event.data)
            self.size += len(event.data)


class Streams:
    """Several of them."""

    def __init__(self, streams: Iterable[Stream]) -> None:
        self.all: Sequence[Stream] = list(streams)

    def mark(self) -> None:
        """Measure pauses anew."""
        for each in self.all:
            each.mark()

    def worst_pause(self) -> float:
        """Return the longest time for which one of them had nothing, since the mark."""
        return max(each.worst_pause() for each in self.all)

    def flow(self) -> Callable[[], bool]:
        """Return a question: has each had data since now?"""
        since = time.monotonic()
        return lambda: all(each.has_data_since(since) for each in self.all)

    def end(self) -> list[Result]:
        """End all; return what became of each."""
        return [each.end() for each in self.all]

    def drop(self) -> None:
        """Give all up."""
        for each in self.all:
            each.drop()
