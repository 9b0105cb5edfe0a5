"""Captures the state of shells for commands that ask for it, once for each session and use.

A capture runs in the directory, environment and sandbox of the command that asked first; others that need the
same one wait for it.  It may take `LIMIT_S` and print `MAX_OUTPUT_BYTES`; then its process group is killed.
What goes wrong is no error: the command runs with its start-up files instead.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Hashable, Mapping

import gevent
from gevent.event import Event
from gevent.os import nb_read

from execserver.core.shell_snapshot import (
    MAX_STATE_BYTES,
    Snapshot,
    capture_command,
    is_complete,
    snapshot_of,
)
from execserver.core.snapshot_cache import SnapshotCache
from execserver.protocol.errors import RpcError
from execserver.protocol.process import ShellSnapshotRequest
from execserver.services.confinement.current_plan import SandboxNotMade
from execserver.services.launch.child import Child

LIMIT_S = 10.0
MAX_OUTPUT_BYTES = 2 * MAX_STATE_BYTES  # with what start-up files print
_PIECE_BYTES = 64 * 1024

_log = logging.getLogger(__name__)

Start = Callable[[list[str]], Child]
"""Starts a command as the one that asked would be started, on pipes."""


class SessionSnapshots:
    """The snapshots of one session."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._cache = SnapshotCache()
        self._running: dict[Hashable, Event] = {}

    def at_once(self, key: Hashable) -> bool:
        """Tell whether `find` returns without waiting."""
        if key in self._running:
            return False
        return self._cache.find(key) is not None or not self._cache.may_capture(key, time.monotonic())

    def find(
        self, key: Hashable, request: ShellSnapshotRequest, given: Mapping[bytes, bytes], start: Start
    ) -> Snapshot | None:
        """Return the snapshot of a key, captured if need be; None where there is none."""
        while (running := self._running.get(key)) is not None:
            running.wait()
        found = self._cache.find(key)
        if found is not None or not self._cache.may_capture(key, time.monotonic()):
            return found
        self._running[key] = done = Event()
        try:
            found = self._capture(request, given, start)
            self._cache.captured(key, found, time.monotonic())
        finally:
            del self._running[key]
            done.set()
        return found

    def _capture(
        self, request: ShellSnapshotRequest, given: Mapping[bytes, bytes], start: Start
    ) -> Snapshot | None:
        mark = os.urandom(16).hex()
        try:
            child = start(capture_command(request, mark))
        except (RpcError, SandboxNotMade) as error:
            _log.info("no shell snapshot: %s", error)
            return None
        output = _output_of(child, mark, self._limit_s)
        found = snapshot_of(request.shell.name, output, mark, given)
        if found is None:
            _log.info("no shell snapshot: %s printed no whole state", request.shell.name)
        return found


def _output_of(child: Child, mark: str, limit_s: float) -> bytes:
    """Return what a capture prints up to its end, the limit or too much; the child is over then."""
    (_, stdout), *others = child.outputs
    drains = [gevent.spawn(_drain, descriptor) for _, descriptor in others]
    output = bytearray()
    try:
        gevent.with_timeout(limit_s, _read, stdout, mark, output, timeout_value=None)
    finally:
        try:
            gevent.killall(drains)  # waits, so this greenlet may be killed in here
        finally:
            for _, descriptor in child.outputs:
                os.close(descriptor)
            _kill(child)
    return bytes(output)


def _read(descriptor: int, mark: str, output: bytearray) -> None:
    while len(output) <= MAX_OUTPUT_BYTES and (piece := nb_read(descriptor, _PIECE_BYTES)):
        output += piece
        if is_complete(bytes(output[-2 * _PIECE_BYTES :]), mark):
            return


def _drain(descriptor: int) -> None:
    while nb_read(descriptor, _PIECE_BYTES):
        pass


def _kill(child: Child) -> None:
    try:
        child.signal(signal.SIGKILL)
    except (OSError, RpcError):
        pass  # nothing of it is left
