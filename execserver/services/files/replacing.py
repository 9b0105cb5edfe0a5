"""Files that are replaced as a whole or not at all: written beside the old one, then renamed over it.

The steps are those of `FileService` or of a sandboxed request, so every one is under the same rules as if the
client had made it.  The new file is for its owner only until it has its content and its permissions.
"""

from __future__ import annotations

import os
import stat

from execserver.files.placing import fresh_name
from execserver.protocol.errors import InvalidRequest, NotFound, RpcError
from execserver.protocol.files import FileVersion, FsOpenMode, FsWriteFileParams
from execserver.protocol.paths import display
from execserver.services.files.filesystem import FileService
from execserver.services.files.sandboxed import ConfinedFiles

_PRIVATE = 0o600


def version_of(
    service: FileService, files: FileService | ConfinedFiles, path: bytes
) -> tuple[FileVersion, int]:
    """Return the version of a regular file and its permissions.  Raises as `open`."""
    file = files.open(path, FsOpenMode.READ)
    try:
        status = os.fstat(file.fd)
    finally:
        service.release(file.fd)
    version = FileVersion(modified_at_ns=status.st_mtime_ns, size=status.st_size)
    return version, stat.S_IMODE(status.st_mode)


def replace_file(
    service: FileService, files: FileService | ConfinedFiles, params: FsWriteFileParams, content: bytes
) -> None:
    """Replace a file, if it is the version that the client knows; links are followed.

    Raises InvalidRequest when it has changed, and what the single steps raise; then the old file stays.
    A change in the moment between the look and the rename is not noticed.
    """
    path = params.path.native()
    mode = params.mode
    try:
        path = files.canonicalize(path)
        version, old_mode = version_of(service, files, path)
    except (FileNotFoundError, NotFound):
        version, old_mode = None, None
        path = os.path.join(files.canonicalize(os.path.dirname(path)), os.path.basename(path))
    wanted = params.if_unchanged_since
    if wanted is not None and version != wanted:
        raise InvalidRequest(f"file has changed: {display(path)}")
    if params.must_not_exist and version is not None:
        raise InvalidRequest(f"file exists: {display(path)}")
    folder = os.path.dirname(path)
    fresh = os.path.join(folder, fresh_name())
    # Without links: whoever may write to the folder could put one there, and have its target written.
    files.write_file(fresh, b"", links=False)
    try:
        _fill(service, files, fresh, content, old_mode if mode is None else mode)
        files.rename(fresh, path, not params.must_not_exist)
    except BaseException:
        try:
            files.remove(fresh, recursive=False, force=True)
        except (OSError, RpcError):
            pass  # the first error says what is wrong
        raise


def _fill(
    service: FileService, files: FileService | ConfinedFiles, fresh: bytes, content: bytes, mode: int | None
) -> None:
    if mode is not None:
        files.chmod(fresh, _PRIVATE, links=False)
    files.write_file(fresh, content, links=False)
    file = files.open(fresh, FsOpenMode.READ)
    try:
        # Before the rename, or a power cut could leave an empty file in the old one's place.
        service.in_thread(lambda pause: os.fsync(file.fd))
    finally:
        service.release(file.fd)
    if mode is not None:
        files.chmod(fresh, mode & 0o777, links=False)
