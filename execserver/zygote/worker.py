"""A file worker: performs file operations in one sandbox root, one at a time, until its socket ends.

It runs in a fork of the zygote that has entered the sandbox root of one plan and given up all privileges.  It
finds, checks and opens.  The server reads and writes content on the descriptors that the worker passes;
content and base64 never come here.
"""

from __future__ import annotations

import gc
import os
import time
from errno import EIO

from execserver.files.copy import CopyOptions
from execserver.files.walk import WalkOptions
from execserver.protocol.errors import RpcError
from execserver.sandbox.files import changes
from execserver.sandbox.files import guarded_no_symlinks as no_symlinks
from execserver.sandbox.files import worker_records as records
from execserver.sandbox.files.guard import Denied, PathGuard
from execserver.sandbox.files.operations import GuardedFiles
from execserver.zygote.channel import receive_record, send_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable

    from execserver.sandbox.files.worker_records import Reply, Request
    from execserver.sandbox.plan import SandboxPlan

    Perform = Callable[["Worker", Request], "Reply | int"]

MAX_REPLY_BYTES = 64 * 1024 * 1024  # a listing of about a million names
_LARGE_REPLY_BYTES = 64 * 1024  # some 5,000 names
_PROGRESS_NS = 500_000_000
_MSG_DONTWAIT = 0x40
_MSG_NOSIGNAL = 0x4000
_INTERNAL = -32603


def serve(sock: _socket.socket, plan: SandboxPlan) -> None:
    """Answer requests from a blocking socket until it ends; to be called inside the sandbox root.

    Raises OSError where the sandbox root has no /proc, RecordError for bytes that are no request.
    """
    gc.freeze()  # a collection would write to all that came with the fork, and copy these pages
    worker = Worker(sock, GuardedFiles(PathGuard(plan)))
    while worker.serve_one():
        if worker.replied_bytes > _LARGE_REPLY_BYTES:
            # For each size the interpreter keeps 2,000 freed tuples.  After a listing each of them may lie in
            # a block of 1 MiB that is otherwise empty.  A full collection frees them.
            gc.collect()


class Worker:
    """What one worker holds: its socket, and the file operations behind the path guard."""

    def __init__(self, sock: _socket.socket, files: GuardedFiles) -> None:
        self.files = files
        self._sock = sock
        self.replied_bytes = 0  # of the last request
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
        """Report every half second that a long operation goes on; the server kills a silent worker."""
        now = time.monotonic_ns()
        if now - self._told_ns < _PROGRESS_NS:
            return
        self._told_ns = now
        data = records.encode_reply(records.Progress(self._request_id))
        try:
            # `send` is `sendto` to the kernel, which the filter refuses here.
            self._sock.sendmsg([data], [], _MSG_DONTWAIT | _MSG_NOSIGNAL)
        except BlockingIOError:
            pass  # the server has not read earlier reports yet

    def _perform(self, request: Request) -> Reply | int:
        guard = self.files.guard
        # Where the operation is, for the path in an error; only a certain one is reported.
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
        self.replied_bytes = len(data)
        send_record(self._sock, data, descriptors)


def _read(worker: Worker, request: Request) -> int:
    if request.flags & records.NO_SYMLINKS:
        return no_symlinks.open_regular(worker.files.guard, request.path)
    return worker.files.open_regular(request.path)


def _replace(worker: Worker, request: Request) -> int:
    return worker.files.open_replace(request.path)


def _write(worker: Worker, request: Request) -> int:
    if request.flags & records.NO_SYMLINKS:
        return no_symlinks.open_target(worker.files, request.path)
    return worker.files.open_target(request.path)


def _create_directory(worker: Worker, request: Request) -> Reply:
    recursive = bool(request.flags & records.RECURSIVE)
    if request.flags & records.NO_SYMLINKS:
        no_symlinks.create_directory(worker.files.guard, request.path, recursive)
    else:
        worker.files.create_directory(request.path, recursive)
    return records.Done(request.request_id)


def _get_metadata(worker: Worker, request: Request) -> Reply:
    if request.flags & records.NO_SYMLINKS:
        return records.Metadata(
            request.request_id, *no_symlinks.get_metadata(worker.files.guard, request.path)
        )
    return records.Metadata(request.request_id, worker.files.get_metadata(request.path))


def _canonicalize(worker: Worker, request: Request) -> Reply:
    return records.Path(request.request_id, worker.files.canonicalize(request.path))


def _read_directory(worker: Worker, request: Request) -> Reply:
    return records.Entries(request.request_id, worker.files.read_directory(request.path, worker.pause))


def _remove(worker: Worker, request: Request) -> Reply:
    recursive, force = bool(request.flags & records.RECURSIVE), bool(request.flags & records.FORCE)
    if request.flags & records.NO_SYMLINKS:
        no_symlinks.remove(worker.files.guard, request.path, recursive, force)
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
        list_links=bool(request.flags & records.LIST_LINKS),
    )
    found = worker.files.walk(request.path, options, worker.pause)
    return records.Walked(request.request_id, found.entries, found.errors, found.truncated)


def _rename(worker: Worker, request: Request) -> Reply:
    changes.rename(worker.files.guard, request.path, request.target, bool(request.flags & records.FORCE))
    return records.Done(request.request_id)


def _chmod(worker: Worker, request: Request) -> Reply:
    links = not request.flags & records.NO_SYMLINKS
    changes.chmod(worker.files.guard, request.path, request.limits[0], links=links)
    return records.Done(request.request_id)


def _touch(worker: Worker, request: Request) -> Reply:
    accessed, modified = map(int, request.target.split(b"/")[1:])
    links = not request.flags & records.NO_SYMLINKS
    changes.touch(worker.files.guard, request.path, (accessed, modified), links=links)
    return records.Done(request.request_id)


def _look(worker: Worker, request: Request) -> Reply:
    look = changes.look(worker.files.guard, request.path)
    return records.Path(request.request_id, b"/%d/%d/%d/%b" % look)


def _symlink(worker: Worker, request: Request) -> Reply:
    changes.symlink(worker.files.guard, request.target[1:], request.path)
    return records.Done(request.request_id)


def _open_folder(worker: Worker, request: Request) -> int:
    return no_symlinks.open_folder(worker.files, request.path)


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
    records.RENAME: _rename,
    records.CHMOD: _chmod,
    records.TOUCH: _touch,
    records.LOOK: _look,
    records.SYMLINK: _symlink,
    records.OPEN_FOLDER: _open_folder,
}
