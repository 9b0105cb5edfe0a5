"""One file worker as the server sees it: its process, its socket, and one call at a time.

A worker that ends, does not answer or breaks the protocol is killed, and the current call fails.  Descriptors
from a worker are checked before anyone uses them.
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
from execserver.sandbox.files import worker_records as records
from execserver.zygote.channel import RecordLost, receive_bounded, send_record
from execserver.zygote.worker import MAX_REPLY_BYTES

_EAGER_MS = 1  # the shortest timeout of `poll`; an answer comes within a tenth of it
_READ = 1  # event mask of gevent's io watchers
_HARMLESS_DEVICES = frozenset(os.makedev(1, minor) for minor in (3, 5, 7))  # null, zero and full
_ACCESS = {
    **dict.fromkeys((records.READ, records.OPEN_FOLDER), os.O_RDONLY),
    **dict.fromkeys((records.REPLACE, records.WRITE), os.O_WRONLY),
}


class WorkerProcess(Protocol):
    """A started worker, as `Spawner.start_worker` returns it."""

    @property
    def pid(self) -> int:
        """The pid of the worker."""

    @property
    def exited(self) -> bool:
        """True once the worker was reaped."""

    def kill(self) -> None:
        """Kill the worker without waiting for its end."""


class NotBegun(Exception):
    """The worker ended before it took the request: nothing was done."""


class _Silent(Exception):
    """The worker has given no sign of progress in time."""


class Worker:
    """A worker and its socket, which it owns until `end`.

    `alive` becomes False, for good, when the worker is abandoned.  Calls must not overlap.
    """

    def __init__(self, process: WorkerProcess, sock: _socket.socket, timeout_s: float) -> None:
        """Take over a non-blocking socket; a call without progress for `timeout_s` seconds is abandoned."""
        self.process = process
        self.alive = True
        self._sock = sock
        self._timeout_s = timeout_s
        self._watcher = get_hub().loop.io(sock.fileno(), _READ)
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)

    def call(self, request: records.Request, eager: bool = False) -> tuple[records.Reply, int | None]:
        """Have one operation performed; return the reply and the descriptor it brought, owned by the caller.

        With `eager` the thread waits for the answer, at most a millisecond, before other greenlets run.
        Raises NotBegun if the worker had ended before, InternalError if it ends, is silent for too long or
        breaks the protocol.  After any of these, and if the calling greenlet is killed, it is not alive.
        """
        try:
            self._send(request)
            if eager:
                self._poll.poll(_EAGER_MS)
            return self._answer(request)
        except RecordLost:
            # The worker lives: this process was out of descriptors, and only this reply was lost.
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from None
        except _Silent:
            self.end()
            raise InternalError(f"fs sandbox worker gave no answer for {self._timeout_s:g} s") from None
        except _UNUSABLE as error:
            self.end()
            raise InternalError(f"fs sandbox worker gave no usable answer: {error}") from None
        except OSError:
            raise
        except BaseException:
            self.end()  # its answer may still come, in the middle of the next call
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
        """Return, without waiting, whether an idle worker has ended by itself."""
        try:
            self._sock.recv(1, _socket.MSG_PEEK)
        except BlockingIOError:
            return self.process.exited
        except OSError:
            pass
        return True  # end of file; or a message, which an idle worker has no reason to send

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
            # ECONNRESET instead of an end of file: the kernel does so only if the worker left the request
            # unread.  Nothing of it was done, and another worker may do it.
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
        """Take the one descriptor of a reply off the list and check it; None if the reply brings none."""
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


# What makes the answers of a worker worthless: it broke the protocol, or it is gone.
_UNUSABLE = (records.RecordError, struct.error)


def is_usable(fd: int, operation: int) -> bool:
    """Return whether a descriptor is what an operation opens: a regular file, for writing also a null device;
    or a directory.

    Its access mode must be exactly the one needed, and O_PATH must not be set.
    """
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if flags & os.O_PATH or flags & os.O_ACCMODE != _ACCESS[operation]:
        return False
    status = os.fstat(fd)
    if operation == records.OPEN_FOLDER:
        return stat.S_ISDIR(status.st_mode)
    if stat.S_ISREG(status.st_mode):
        return True
    return operation == records.WRITE and stat.S_ISCHR(status.st_mode) and status.st_rdev in _HARMLESS_DEVICES
