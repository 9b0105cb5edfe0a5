"""One file worker as the server sees it: its process, its socket, and one call at a time.

A worker that does not answer, answers something else, or ends is given up: it is killed and the call that
met it gets an error.  Descriptors that come from a worker are checked before anyone uses them.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import select
import stat
import struct
from typing import Protocol

import gevent
from gevent.hub import get_hub

from execserver.protocol.errors import InternalError
from execserver.sandbox import worker_records as records
from execserver.zygote.channel import RecordLost, receive_bounded, send_record
from execserver.zygote.worker import MAX_REPLY_BYTES

_EAGER_MS = 1  # the shortest a poll can take; an answer comes within a tenth of it
_READ = 1  # event mask of gevent's io watchers
_HARMLESS_DEVICES = frozenset(os.makedev(1, minor) for minor in (3, 5, 7))  # null, zero and full
_ACCESS = {records.READ: os.O_RDONLY, records.REPLACE: os.O_WRONLY, records.WRITE: os.O_WRONLY}


class WorkerProcess(Protocol):
    """A started worker, as `Spawner.start_worker` returns it."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def exited(self) -> bool:
        """True once it was reaped."""

    def kill(self) -> None:
        """Kill it; waits for nothing."""


class NotBegun(Exception):
    """The worker ended before it took the request: nothing was done."""


class _Silent(Exception):
    """The worker gives no sign of progress."""


class Worker:
    """A worker and its socket, which it owns until `end`.

    `alive` turns False for good when the worker is given up.  Calls must not overlap.
    """

    def __init__(self, process: WorkerProcess, sock: _socket.socket, timeout_s: float) -> None:
        """Take over a non-blocking socket; a call without progress for `timeout_s` seconds is given up."""
        self.process = process
        self.alive = True
        self._sock = sock
        self._timeout_s = timeout_s
        self._watcher = get_hub().loop.io(sock.fileno(), _READ)
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)

    def call(self, request: records.Request, eager: bool = False) -> tuple[records.Reply, int | None]:
        """Have one operation performed; return the reply and the descriptor it brought, now the caller's.

        With `eager` the thread waits for the answer, a millisecond at most, before others get a turn.
        Raises NotBegun when the worker had ended before, InternalError when it ends, is silent for too long
        or breaks the rules.  It is not alive then, nor when the calling greenlet is killed meanwhile.
        """
        try:
            self._send(request)
            if eager:
                self._poll.poll(_EAGER_MS)
            return self._answer(request)
        except RecordLost:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from None  # it lives; only this was lost
        except _Silent:
            self.end()
            raise InternalError(f"fs sandbox worker gave no answer for {self._timeout_s:g} s") from None
        except _UNUSABLE as error:
            self.end()
            raise InternalError(f"fs sandbox worker gave no usable answer: {error}") from None
        except OSError:
            raise
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Kill the worker and close its socket; calling it again is fine."""
        if self.alive:
            self.alive = False
            self._watcher.stop()
            self._watcher.close()
            self._sock.close()
            self.process.kill()

    def ended(self) -> bool:
        """Tell, without waiting, whether an idle worker has ended by itself."""
        try:
            self._sock.recv(1, _socket.MSG_PEEK)
        except BlockingIOError:
            return self.process.exited
        except OSError:
            pass
        return True  # an idle worker has nothing to say

    def _send(self, request: records.Request) -> None:
        try:
            send_record(self._sock, records.encode_request(request))
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.ECONNRESET):
                self.end()
                raise NotBegun from None
            self.end()
            raise InternalError("fs sandbox worker takes no request") from None

    def _answer(self, request: records.Request) -> tuple[records.Reply, int | None]:
        while True:
            data, descriptors = self._receive()
            try:
                reply = records.decode_reply(data)
                if reply.request_id != request.request_id:
                    raise records.RecordError("the answer belongs to another request")
                if isinstance(reply, records.Progress):
                    continue
                opened = self._take_opened(request, reply, descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            return reply, opened

    def _receive(self) -> tuple[bytes, list[int]]:
        try:
            try:
                received = receive_bounded(self._sock, MAX_REPLY_BYTES)
            except BlockingIOError:
                received = self._wait_and_receive()
        except ConnectionResetError:
            self.end()
            raise NotBegun from None
        if received is None:
            raise records.RecordError("it ended in the middle of the call")
        return received

    def _wait_and_receive(self) -> tuple[bytes, list[int]] | None:
        hub = get_hub()
        with gevent.Timeout(self._timeout_s, _Silent):
            while True:
                hub.wait(self._watcher)
                try:
                    return receive_bounded(self._sock, MAX_REPLY_BYTES)
                except BlockingIOError:
                    continue

    @staticmethod
    def _take_opened(request: records.Request, reply: records.Reply, descriptors: list[int]) -> int | None:
        """Take the one descriptor of a reply off the list, checked; None if the reply brings none."""
        opens = request.operation in _ACCESS
        if not isinstance(reply, records.Done) or not reply.opened:
            if opens and isinstance(reply, records.Done):
                raise records.RecordError("nothing was opened")
            return None
        if not opens or len(descriptors) > 1:
            raise records.RecordError("something was opened that nobody asked for")
        if not descriptors:  # this process had no free number for it
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if not is_usable(descriptors[0], request.operation):
            raise records.RecordError("what was opened is not what was asked for")
        return descriptors.pop()


# What makes the answers of a worker worthless: it broke the rules, or is gone.
_UNUSABLE = (records.RecordError, struct.error)


def is_usable(fd: int, operation: int) -> bool:
    """Tell whether a descriptor is what an operation opens: a regular file, for writing also a null device.

    Its access mode must be exactly the one needed, and it must be more than a name for a file (O_PATH).
    """
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if flags & os.O_PATH or flags & os.O_ACCMODE != _ACCESS[operation]:
        return False
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode):
        return True
    return operation == records.WRITE and stat.S_ISCHR(status.st_mode) and status.st_rdev in _HARMLESS_DEVICES
