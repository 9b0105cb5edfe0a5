"""Keeping this program's own files out of reach: whoever changed them inside would act outside.

What is unpacked is started again, unconfined, by the next server; records of placeholders tell the next owner
what to remove.  A policy may make the folders they lie in writable, for instance the one for temporary files.
"""

from __future__ import annotations

import os

from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.sandbox.placeholder_records import state_folder
from execserver.sandbox.plan import HIDDEN_DIRECTORY, READ, ROOT_HOST, ROOT_WRITABLE, WRITE, Mount, ViewPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.host import Host


def keep_own_files(plan: ViewPlan, host: Host, runtime_dir: bytes | None) -> ViewPlan:
    """Return a plan that also hides the records and keeps the unpacked program as it is.

    The folder of the records is made if need be: nobody inside shall make it first.  Raises OSError.
    """
    if plan.root == ROOT_HOST:
        return plan
    records = state_folder(runtime_dir)
    if records is not None:
        plan = _with(plan, host, records, HIDDEN_DIRECTORY)
    unpacked = ExecServerRuntimePaths.unpacked_folder()
    return plan if unpacked is None else _with(plan, host, os.path.realpath(unpacked), READ)


def _with(plan: ViewPlan, host: Host, folder: bytes, kind: str) -> ViewPlan:
    """Add a mount for a folder where it would be writable."""
    above = [mount for mount in plan.mounts if _is_below(folder, mount.path)]
    nearest = max(above, key=lambda mount: len(mount.path), default=None)
    writable = plan.root == ROOT_WRITABLE if nearest is None else nearest.kind == WRITE
    identity = host.identity(folder) if writable else None
    if identity is None:
        return plan
    # A folder on the way could be moved away with what lies in it, were it no mount of its own.
    way = [Mount(WRITE, path, path, host.identity(path)) for path in _between(nearest, folder)]
    last = Mount(kind, folder, folder if kind == READ else b"", identity)
    fields = {name: getattr(plan, name) for name in plan.__slots__}
    kept = "read_only" if kind == READ else "denied"
    fields["mounts"] = (*plan.mounts, *way, last)
    fields[kept] = (*fields[kept], folder)
    return ViewPlan(**fields)


def _between(nearest: Mount | None, folder: bytes) -> list[bytes]:
    """Return the folders between a mount and one below it, from the top; both left out."""
    start = b"/" if nearest is None else nearest.path
    found = []
    path = os.path.dirname(folder)
    while len(path) > len(start):
        found.append(path)
        path = os.path.dirname(path)
    return found[::-1]


def _is_below(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")
