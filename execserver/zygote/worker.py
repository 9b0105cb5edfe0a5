"""A file worker: performs file operations inside the view of one plan, one at a time, until its socket ends.

It runs in a fork of the zygote that has entered the view and given up all privileges.  It finds, checks and
opens; content is read and written by the server, on the descriptors it is given.  Content and base64 never
come here.
"""

from __future__ import annotations

import gc
import os
import time
from errno import EIO

from execserver.files.copy import CopyOptions
from execserver.files.walk import WalkOptions
from execserver.protocol.errors import RpcError
from execserver.sandbox import guarded_no_links as no_links
from execserver.sandbox import worker_records as records
from execserver.sandbox.guarded import Denied, Guard
from execserver.sandbox.guarded_files import GuardedFiles
from execserver.zygote.channel import receive_record, send_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable

    from execserver.sandbox.plan import ViewPlan
    from execserver.sandbox.worker_records import Reply, Request

    Perform = Callable[["Worker", Request], "Reply | int"]

MAX_REPLY_BYTES = 64 * 1024 * 1024  # a listing of about a million names
_PROGRESS_NS = 500_000_000
_MSG_DONTWAIT = 0x40
_MSG_NOSIGNAL = 0x4000
_INTERNAL = -32603


def serve(sock: _socket.socket, plan: ViewPlan) -> None:
    """Answer requests from a blocking socket until it ends; to be called inside the view.

    Raises OSError where the view has no /proc, RecordError for bytes that are no request.
    """
    gc.freeze()  # what came with the fork stays shared with the zygote
    worker = Worker(sock, GuardedFiles(Guard(plan)))
    while worker.serve_one():
        pass


class Worker:
    """What one worker holds: its socket, and the guarded operations."""

    def __init__(self, sock: _socket.socket, files: GuardedFiles) -> None:
        self.files = files
        self._sock = sock
        self._request_id = 0
        self._told_ns = 0

    def serve_one(self) -> bool:
        """Answer one request; return False at the end of the socket."""
        received = receive_record(self._sock)
        if received is None:
            return False
        data, unwanted = received
        for descriptor in unwanted:
            os.close(descriptor)
        request = records.decode_request(data)
        self._request_id = request.request_id
        self._told_ns = time.monotonic_ns()
        found = self._perform(request)
        if isinstance(found, int):
            try:
                self._send(records.Done(request.request_id, opened=True), (found,))
            finally:
                os.close(found)
        else:
            self._send(found)
        return True

    def pause(self) -> None:
        """Tell now and then that a long operation goes on."""
        now = time.monotonic_ns()
        if now - self._told_ns < _PROGRESS_NS:
            return
        self._told_ns = now
        data = records.encode_reply(records.Progress(self._request_id))
        try:
            self._sock.sendmsg([data], [], _MSG_DONTWAIT | _MSG_NOSIGNAL)  # `send` is not allowed here
        except BlockingIOError:
            pass  # earlier ones have not been read yet

    def _perform(self, request: Request) -> Reply | int:
        guard = self.files.guard
        guard.at = b""
        guard.certain = True
        try:
            return _OPERATIONS[request.operation](self, request)
        except Denied as denied:
            return records.Failed(request.request_id, denied.errno or EIO, denied.path, denied.reason)
        except OSError as error:
            path = guard.at if guard.certain else b""
            return records.Failed(request.request_id, error.errno or EIO, path)
        except RpcError as error:
            return records.Refused(request.request_id, error.code, error.message)

    def _send(self, reply: Reply, descriptors: tuple[int, ...] = ()) -> None:
        data = records.encode_reply(reply)
        if len(data) > MAX_REPLY_BYTES:
            text = f"the result is too large: limit is {MAX_REPLY_BYTES} bytes"
            data = records.encode_reply(records.Refused(reply.request_id, _INTERNAL, text))
        send_record(self._sock, data, descriptors)


def _read(worker: Worker, request: Request) -> int:
    if request.flags & records.NO_LINKS:
        return no_links.open_regular(worker.files.guard, request.path)
    return worker.files.open_regular(request.path)


def _replace(worker: Worker, request: Request) -> int:
    return worker.files.open_replace(request.path)


def _write(worker: Worker, request: Request) -> int:
    if request.flags & records.NO_LINKS:
        return no_links.open_target(worker.files, request.path)
    return worker.files.open_target(request.path)


def _create_directory(worker: Worker, request: Request) -> Reply:
    recursive = bool(request.flags & records.RECURSIVE)
    if request.flags & records.NO_LINKS:
        no_links.create_directory(worker.files.guard, request.path, recursive)
    else:
        worker.files.create_directory(request.path, recursive)
    return records.Done(request.request_id)


def _get_metadata(worker: Worker, request: Request) -> Reply:
    if request.flags & records.NO_LINKS:
        return records.Metadata(request.request_id, *no_links.get_metadata(worker.files.guard, request.path))
    return records.Metadata(request.request_id, worker.files.get_metadata(request.path))


def _canonicalize(worker: Worker, request: Request) -> Reply:
    return records.Path(request.request_id, worker.files.canonicalize(request.path))


def _read_directory(worker: Worker, request: Request) -> Reply:
    return records.Entries(request.request_id, worker.files.read_directory(request.path, worker.pause))


def _remove(worker: Worker, request: Request) -> Reply:
    recursive, force = bool(request.flags & records.RECURSIVE), bool(request.flags & records.FORCE)
    if request.flags & records.NO_LINKS:
        no_links.remove(worker.files.guard, request.path, recursive, force)
    else:
        worker.files.remove(request.path, recursive, force, worker.pause)
    return records.Done(request.request_id)


def _copy(worker: Worker, request: Request) -> Reply:
    recursive = bool(request.flags & records.RECURSIVE)
    worker.files.copy(request.path, request.target, recursive, CopyOptions(worker.pause))
    return records.Done(request.request_id)


def _walk(worker: Worker, request: Request) -> Reply:
    options = WalkOptions(
        *request.limits,
        follow_links=bool(request.flags & records.FOLLOW_LINKS),
        prune_hidden=bool(request.flags & records.PRUNE_HIDDEN),
    )
    found = worker.files.walk(request.path, options, worker.pause)
    return records.Walked(request.request_id, found.entries, found.errors, found.truncated)


_OPERATIONS: dict[int, Perform] = {
    records.READ: _read,
    records.REPLACE: _replace,
    records.WRITE: _write,
    records.CREATE_DIRECTORY: _create_directory,
    records.GET_METADATA: _get_metadata,
    records.CANONICALIZE: _canonicalize,
    records.READ_DIRECTORY: _read_directory,
    records.REMOVE: _remove,
    records.COPY: _copy,
    records.WALK: _walk,
}
