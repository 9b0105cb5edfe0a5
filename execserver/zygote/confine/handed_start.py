"""A start as bytes, for a process that waits for one: the request, and the mounts that mask missing paths.

Both sides are forks of one process, and the zygote has checked the request.  So one call in C takes the bytes
apart: to decode a record and a plan again would touch pages that each fork has to copy.
"""

from __future__ import annotations

import marshal

from execserver.resources.rlimits import ChildLimits
from execserver.sandbox.plan import Mount
from execserver.zygote.confinement import Confinement
from execserver.zygote.records import SpawnRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Records have their id here: the channel copies it into the datagram of one that travels in a memfd.
_HEAD = bytes(16)


def handed(request: SpawnRequest, covers: Sequence[Mount]) -> bytes:
    """Return the bytes of a start."""
    strings = (request.argv, request.env, request.cwd, request.arg0, request.slave)
    # Plain tuples: those of a subclass cannot be marshalled.
    confinement = (request.confinement.kind, request.confinement.plan, request.confinement.detail)
    beside = (confinement, request.supervision, request.listens, tuple(request.limits))
    mounts = tuple((mount.kind, mount.path, mount.source, mount.identity) for mount in covers)
    start = (request.request_id, strings, request.pipe_stdin, request.deadline_ns, beside, mounts)
    return _HEAD + marshal.dumps(start)


def start_in(data: bytes) -> tuple[SpawnRequest, Sequence[Mount]]:
    """Return the request and the mounts of a start."""
    number, strings, pipe_stdin, deadline_ns, beside, mounts = marshal.loads(memoryview(data)[len(_HEAD) :])
    argv, env, cwd, arg0, slave = strings
    confinement, supervision, listens, limits = beside
    request = SpawnRequest(
        *(number, argv, env, cwd, arg0, slave, pipe_stdin, deadline_ns),
        *(Confinement(*confinement), supervision, listens, ChildLimits(*limits)),
    )
    return request, [Mount(*mount) for mount in mounts]
