"""Writes one entry of `fs/writeMany` within a sandbox, by the operations of sandboxed requests.

Every step is under the rules of the sandbox, and follows no symlink: others who may write in the folder could
have put one into the place of what was written just before.  Symlinks get no time.
"""

from __future__ import annotations

import os

from execserver.files import part
from execserver.files.placing import fresh_name
from execserver.protocol.batches import FsNodeKind, FsWriteEntry
from execserver.protocol.errors import InvalidRequest, NotFound, RpcError
from execserver.services.files.filesystem import FileService
from execserver.services.files.sandboxed import ConfinedFiles

_PERMISSIONS = 0o777


def write_confined(
    service: FileService, files: ConfinedFiles, path: bytes, entry: FsWriteEntry, writer: str
) -> None:
    """Write an entry of `writer`.  Raises OSError and RpcError."""
    folder = os.path.dirname(path)
    if entry.kind is FsNodeKind.ABSENT:
        _remove(files, path)
    elif entry.kind is FsNodeKind.DIRECTORY:
        files.create_directory(path, recursive=True, links=False)
        _stamp(files, path, entry)
    elif entry.kind is FsNodeKind.SYMLINK:
        files.create_directory(folder, recursive=True, links=False)
        fresh = os.path.join(folder, fresh_name())
        files.symlink(bytes(entry.target or b""), fresh)
        _rename(files, fresh, path)
    elif entry.content is None:
        _refuse_links(files, path)
        _stamp(files, path, entry)
    elif entry.part is not None:
        files.create_directory(folder, recursive=True, links=False)
        _add(service, files, path, entry, writer)
    else:
        files.create_directory(folder, recursive=True, links=False)
        fresh = os.path.join(folder, fresh_name())
        try:
            files.write_file(fresh, bytes(entry.content), links=False)
            _stamp(files, fresh, entry)
        except BaseException:
            _forget(files, fresh)
            raise
        _rename(files, fresh, path)


def _add(service: FileService, files: ConfinedFiles, path: bytes, entry: FsWriteEntry, writer: str) -> None:
    content = bytes(entry.content or b"")
    folder = os.path.dirname(path)
    name = os.path.join(folder, bytes(entry.part or b""))
    mark = part.mark_of(writer, entry.size, entry.modified_at_ns)
    if entry.offset and _is_done(files, path, entry) and not _is_there(files, name):
        return  # the last piece has come again
    file = files.open_part(name)
    try:
        if os.fstat(file.fd).st_uid != os.geteuid():
            raise InvalidRequest("the part belongs to another user")
        part.take(file.fd, os.path.basename(name), entry.offset, len(content), mark)
        service.write_block(file, entry.offset, content)
        part.leave(file.fd, mark)
        if entry.offset + len(content) < entry.size:
            return
        os.ftruncate(file.fd, entry.size)
        _stamp(files, name, entry)
        files.rename(name, path, replace=True)
    finally:
        service.release(file.fd)


def _is_done(files: ConfinedFiles, path: bytes, entry: FsWriteEntry) -> bool:
    try:
        _, modified_ns, size, target = files.look(path)
    except (FileNotFoundError, NotFound):
        return False
    return not target and (size, modified_ns) == (entry.size, entry.modified_at_ns)


def _is_there(files: ConfinedFiles, path: bytes) -> bool:
    try:
        files.look(path)
    except (FileNotFoundError, NotFound):
        return False
    return True


def _stamp(files: ConfinedFiles, path: bytes, entry: FsWriteEntry) -> None:
    if entry.mode is not None:
        files.chmod(path, entry.mode & _PERMISSIONS, links=False)
    if entry.modified_at_ns is not None:
        files.touch(path, (entry.modified_at_ns, entry.modified_at_ns), create=False, links=False)


def _remove(files: ConfinedFiles, path: bytes) -> None:
    try:
        _refuse_links(files, os.path.dirname(path))
        files.remove(path, recursive=False, force=True)
    except (FileNotFoundError, NotFound):
        pass


def _refuse_links(files: ConfinedFiles, path: bytes) -> None:
    if files.canonicalize(path) != path:
        raise InvalidRequest("path contains a symbolic link")


def _rename(files: ConfinedFiles, fresh: bytes, path: bytes) -> None:
    try:
        files.rename(fresh, path, replace=True)
    except BaseException:
        _forget(files, fresh)
        raise


def _forget(files: ConfinedFiles, fresh: bytes) -> None:
    try:
        files.remove(fresh, recursive=False, force=True)
    except (OSError, RpcError):
        pass  # the first error says what is wrong
