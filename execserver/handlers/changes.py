"""`fs/getVersion`, `fs/rename`, `fs/chmod` and `fs/touch` (wire contract, section 18)."""

from __future__ import annotations

from execserver.handlers.context import Call
from execserver.handlers.filesystem import operations
from execserver.handlers.registry import handles
from execserver.protocol import changes
from execserver.protocol.own_methods import FS_CHMOD, FS_GET_VERSION, FS_RENAME, FS_TOUCH
from execserver.services.files.replacing import version_of


@handles(FS_GET_VERSION)
def look(call: Call, params: changes.FsGetVersionParams) -> changes.FsGetVersionResponse:
    """Tell the version and the permissions of a regular file."""
    files = operations(call, params.sandbox, params.path)
    version, mode = version_of(call.services.filesystem, files, params.path.native())
    return changes.FsGetVersionResponse(version=version, mode=mode)


@handles(FS_RENAME)
def rename(call: Call, params: changes.FsRenameParams) -> changes.FsRenameResponse:
    """Give a file or directory another name."""
    files = operations(call, params.sandbox, params.source_path, params.destination_path)
    files.rename(params.source_path.native(), params.destination_path.native(), params.replace)
    return changes.FsRenameResponse()


@handles(FS_CHMOD)
def chmod(call: Call, params: changes.FsChmodParams) -> changes.FsChmodResponse:
    """Set permissions."""
    operations(call, params.sandbox, params.path).chmod(params.path.native(), params.mode)
    return changes.FsChmodResponse()


@handles(FS_TOUCH)
def touch(call: Call, params: changes.FsTouchParams) -> changes.FsTouchResponse:
    """Set times, of a new file if there is none."""
    files = operations(call, params.sandbox, params.path)
    given = (params.accessed_at_ns, params.modified_at_ns)
    accessed, modified = (-1 if each is None else each for each in given)
    files.touch(params.path.native(), (accessed, modified), params.create)
    return changes.FsTouchResponse()
