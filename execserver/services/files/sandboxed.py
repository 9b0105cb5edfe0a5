"""The file operations of requests that need a sandbox: a worker in the sandbox root of their plan does them.

They have the names, arguments and errors of `FileService`, plus the refusals of the sandbox.  A worker
resolves paths and opens files; content is read and written here, through the descriptors it passes.  Nothing
here falls back to an operation without a sandbox.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from execserver.core.file_handles import OpenFile
from execserver.files.folders import Name
from execserver.files.walk import Walk, WalkOptions
from execserver.protocol.errors import InternalError, InvalidRequest, NotFound, RpcError, from_os_error
from execserver.protocol.files import FsOpenMode
from execserver.protocol.paths import PathUri, display
from execserver.protocol.permissions import DENY, READ, WRITE
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.sandbox.client_limits import Limits
from execserver.sandbox.files import worker_records as records
from execserver.sandbox.plan import SandboxPlan
from execserver.sandbox.policy.request_check import file_request_needs_sandbox
from execserver.services.confinement.current_plan import SandboxNotMade, with_current_plan
from execserver.services.confinement.sandbox import SandboxService
from execserver.services.files.filesystem import FileService
from execserver.services.files.worker_pool import StartWorker, WorkerPool
from execserver.settings import Settings

_REMEMBERED = 256  # contexts whose check is remembered
# What a sandbox root answers for something withheld; ENOENT, since a masked directory looks empty.
_EXPLAINED = frozenset((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT))
_READING = frozenset(
    (
        *(records.READ, records.GET_METADATA, records.CANONICALIZE),
        *(records.READ_DIRECTORY, records.WALK, records.COPY, records.LOOK, records.OPEN_FOLDER),
    )
)
_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))
_PROCESSES = "processes under /proc are not shown"
_ERRORS = {error.code: error for error in (InvalidRequest, InternalError, NotFound)}


class SandboxedFiles:
    """The sandboxed operations of one server; `within` gives those of one request."""

    def __init__(
        self, files: FileService, sandbox: SandboxService, start: StartWorker, settings: Settings
    ) -> None:
        """`start` starts a worker, as `Spawner.start_worker` does."""
        self.files = files
        self.sandbox = sandbox
        self._needed: dict[FileSystemSandboxContext, bool] = {}
        self.workers = WorkerPool(start, sandbox.choose, files.mount_generation, settings.file_call_timeout_s)

    def needed(self, context: FileSystemSandboxContext, *paths: PathUri) -> bool:
        """Check paths and context of a request, and return, as `file_request_needs_sandbox` does.

        The answer for a context is remembered; the paths are checked every time.
        """
        known = self._needed.get(context)
        if known is None:
            known = file_request_needs_sandbox(context, *paths)
            if len(self._needed) >= _REMEMBERED:
                self._needed.clear()
            self._needed[context] = known
            return known
        for path in paths:
            path.native()  # raises for a path of another kind of host
        return known

    def within(self, context: FileSystemSandboxContext, limits: Limits | None = None) -> ConfinedFiles:
        """Return the operations for a context that `needed` has checked and that restricts files.

        With `limits`, which are laid over it, it may be one that restricts nothing.
        """
        return ConfinedFiles(self, context, limits)

    def close(self) -> None:
        """End every worker."""
        self.workers.close()


class ConfinedFiles:
    """The operations of one request.  Each asks for a plan, so the sandbox root fits the host at this moment.

    With `links` False (no-symlinks mode) any symlink in the path is refused.
    """

    __slots__ = ("_context", "_limits", "_service")

    def __init__(
        self, service: SandboxedFiles, context: FileSystemSandboxContext, limits: Limits | None
    ) -> None:
        self._service = service
        self._context = context
        self._limits = limits

    def get_metadata(self, path: bytes) -> tuple[bool, bool, bool, int, int]:
        """Return is_directory, is_file, is_symlink, size in bytes, time of modification in ms."""
        reply = self._ask(records.GET_METADATA, path)
        assert isinstance(reply, records.Metadata)
        return reply.values

    def get_metadata_without_symlinks(self, path: bytes) -> tuple[tuple[bool, bool, bool, int, int], int]:
        """Return what `get_metadata` does, and the time of birth in ms; refuse symlinks in the path."""
        reply = self._ask(records.GET_METADATA, path, records.NO_SYMLINKS)
        assert isinstance(reply, records.Metadata)
        return reply.values, reply.born_ms

    def canonicalize(self, path: bytes) -> bytes:
        """Return the resolved path."""
        reply = self._ask(records.CANONICALIZE, path)
        assert isinstance(reply, records.Path)
        return reply.path

    def create_directory(self, path: bytes, recursive: bool, links: bool = True) -> None:
        """Make a directory, with `recursive` also its parents."""
        flags = (records.RECURSIVE if recursive else 0) | _links(links)
        self._ask(records.CREATE_DIRECTORY, path, flags)

    def read_directory(self, path: bytes) -> list[tuple[str, bool, bool]]:
        """Return name, is_directory and is_file of every entry."""
        reply = self._ask(records.READ_DIRECTORY, path)
        assert isinstance(reply, records.Entries)
        return reply.entries

    def remove(self, path: bytes, recursive: bool, force: bool, links: bool = True) -> None:
        """Remove a file, a symlink, or with `recursive` a tree."""
        flags = (records.RECURSIVE if recursive else 0) | (records.FORCE if force else 0)
        self._ask(records.REMOVE, path, flags | _links(links))

    def rename(self, source: bytes, destination: bytes, replace: bool) -> None:
        """Give a file or symlink another name; directories are refused."""
        self._ask(records.RENAME, source, records.FORCE if replace else 0, destination)

    def chmod(self, path: bytes, mode: int, links: bool = True) -> None:
        """Set permissions; those that lend a user's rights to others are refused."""
        if mode & ~0o777:
            raise InvalidRequest("a sandbox sets no bits for setuid, setgid or sticky")
        self._ask(records.CHMOD, path, _links(links), limits=(mode, 0, 0))

    def touch(self, path: bytes, times: tuple[int, int], create: bool, links: bool = True) -> None:
        """Set times; with `create` make an empty file where there is none."""
        if create:
            self._service.files.release(self.open_target(path))
        self._ask(records.TOUCH, path, _links(links), b"/%d/%d" % times)

    def look(self, path: bytes) -> tuple[int, int, int, bytes]:
        """Return permissions, time of modification in ns, size, and the target of a symlink or nothing."""
        reply = self._ask(records.LOOK, path)
        assert isinstance(reply, records.Path)
        _, mode, modified_ns, size, target = reply.path.split(b"/", 4)
        return int(mode), int(modified_ns), int(size), target

    def symlink(self, text: bytes, path: bytes) -> None:
        """Make a symlink; no symlink is followed on the way."""
        self._ask(records.SYMLINK, path, target=b"/" + text)

    def open_part(self, path: bytes) -> OpenFile:
        """Open a file to write a part of it, without symlinks; closed with `FileService.release`."""
        fd = self._open(records.WRITE, path, records.NO_SYMLINKS)
        return self._service.files.adopt(fd, FsOpenMode.REPLACE)

    def open_target(self, path: bytes) -> int:
        """Open or create a file for writing; the caller owns the descriptor."""
        return self._open(records.WRITE, path)

    def copy(self, source: bytes, destination: bytes, recursive: bool) -> None:
        """Copy a file, a symlink, or with `recursive` a tree."""
        self._ask(records.COPY, source, records.RECURSIVE if recursive else 0, destination)

    def walk(self, root: bytes, options: WalkOptions) -> Walk:
        """List what is below a directory."""
        flags = records.FOLLOW_LINKS if options.follow_links else 0
        flags |= records.PRUNE_HIDDEN if options.prune_hidden else 0
        flags |= records.LIST_LINKS if options.list_links else 0
        limits = (options.max_depth, options.max_directories, options.max_entries)
        reply = self._ask(records.WALK, root, flags, limits=limits)
        assert isinstance(reply, records.Walked)
        found = Walk(options)
        found.entries, found.errors, found.truncated = reply.entries, reply.errors, reply.truncated
        return found

    def read_file(self, path: bytes, limit: int, links: bool = True) -> tuple[bytes, Iterator[bytes] | None]:
        """Return the first piece of a file's base64 text and an iterator of the rest, None if that is all."""
        return self._service.files.read_opened(self._open(records.READ, path, _links(links)), limit)

    def write_file(self, path: bytes, content: bytes, links: bool = True) -> None:
        """Create a file or replace its content."""
        self._service.files.write_opened(self._open(records.WRITE, path, _links(links)), content)

    def open(self, path: bytes, mode: FsOpenMode) -> OpenFile:
        """Open a regular file; the caller owns its descriptor and closes it with `FileService.release`."""
        fd = self._open(records.READ if mode is FsOpenMode.READ else records.REPLACE, path)
        return self._service.files.adopt(fd, mode)

    def open_folder(self, path: bytes) -> int:
        """Open a directory for listing, without symlinks; closed with `release_folder`.

        Raises OSError if it is gone or is no directory any more, for which nobody needs an explanation.
        """
        reply, fd = self._reply(records.Request(0, records.OPEN_FOLDER, path))
        if isinstance(reply, records.Failed) and reply.errno in _GONE:
            raise OSError(reply.errno, os.strerror(reply.errno))
        self._raise_refusal(records.Request(0, records.OPEN_FOLDER, path), reply)
        assert fd is not None
        return self._service.files.note_folder(fd)

    def names_in(self, fd: int, most: int, only_folders: bool) -> tuple[list[Name], bool]:
        """List an open directory as `FileService` does."""
        return self._service.files.names_in(fd, most, only_folders)

    def release_folder(self, fd: int) -> None:
        """Close what `open_folder` has opened."""
        self._service.files.release(fd)

    def visible(self, paths: list[bytes]) -> list[bool]:
        """Return of each path without symlinks whether it may be read."""
        return self._service.sandbox.visible(self._context, self._limits, paths)

    def _open(self, operation: int, path: bytes, flags: int = 0) -> int:
        _, fd = self._call(records.Request(0, operation, path, flags))
        assert fd is not None
        return fd

    def _ask(
        self,
        operation: int,
        path: bytes,
        flags: int = 0,
        target: bytes = b"",
        limits: tuple[int, int, int] = (0, 0, 0),
    ) -> records.Reply:
        return self._call(records.Request(0, operation, path, flags, target, limits))[0]

    def _call(self, request: records.Request) -> tuple[records.Reply, int | None]:
        reply, fd = self._reply(request)
        self._raise_refusal(request, reply)
        return reply, fd

    def _reply(self, request: records.Request) -> tuple[records.Reply, int | None]:
        if max(len(request.path), len(request.target)) > records.MAX_PATH_BYTES:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        return self._performed(request)

    def _raise_refusal(self, request: records.Request, reply: records.Reply) -> None:
        if isinstance(reply, records.Failed):
            raise self._denial(request, reply)
        if isinstance(reply, records.Refused):
            raise _ERRORS.get(reply.code, InternalError)(reply.message)

    def _performed(self, request: records.Request) -> tuple[records.Reply, int | None]:
        """Have a request performed in a sandbox root that fits the host at this moment."""
        service = self._service

        def plan() -> SandboxPlan:
            return service.sandbox.files_plan(self._context, self._limits)

        try:
            return with_current_plan(plan(), plan, lambda plan: service.workers.call(plan, request))
        except SandboxNotMade as failed:
            raise InvalidRequest(f"failed to prepare fs sandbox: {failed}") from None

    def _denial(self, request: records.Request, failed: records.Failed) -> RpcError:
        """Return the error of a call, with the rule that caused it if that is certain."""
        error = from_os_error(OSError(failed.errno, os.strerror(failed.errno)))
        if failed.errno in _EXPLAINED and failed.path:
            wanted = READ if request.operation in _READING else WRITE
            # A copy reads its source and writes its destination; only the latter can be read-only.
            if request.operation == records.COPY and failed.errno == errno.EROFS:
                wanted = WRITE
            found = None
            if failed.reason == records.BY_PROCFS:
                found = {"path": display(failed.path), "rule": _PROCESSES, "access": DENY}
            else:
                found = self._service.sandbox.explain_files(self._context, failed.path, wanted)
            # If the policy lets the path be read, ENOENT only means that nothing is there.
            if found is not None and (failed.errno != errno.ENOENT or found["access"] == DENY):
                error.data = {"sandbox": found}
        return error


def _links(wanted: bool) -> int:
    return 0 if wanted else records.NO_SYMLINKS
