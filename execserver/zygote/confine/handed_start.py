"""A start as bytes, for a process that waits for one: the request, and the mounts that mask missing paths."""

from __future__ import annotations

import struct

from execserver.sandbox.plan import ROOT_READ_ONLY, SandboxPlan
from execserver.sandbox.plan_record import decode_plan, encode_plan
from execserver.zygote.records import SpawnRequest, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.sandbox.plan import Mount

# The length of the encoded request; the mounts follow it.  It stands where records have their id, since the
# channel copies that id into the datagram of a record that travels in a memfd.
_HEAD = struct.Struct("<8xQ")


def handed(request: SpawnRequest, covers: Sequence[Mount]) -> bytes:
    """Return the bytes of a start."""
    record = encode(request)
    # A plan is the encoding at hand for a list of mounts; of this one only the mounts are used.
    return _HEAD.pack(len(record)) + record + encode_plan(SandboxPlan(ROOT_READ_ONLY, tuple(covers)))


def request_of(data: bytes) -> SpawnRequest:
    """Return the request of a start."""
    (length,) = _HEAD.unpack_from(data)
    request = decode(data[_HEAD.size : _HEAD.size + length])
    assert isinstance(request, SpawnRequest)
    return request


def covers_in(data: bytes) -> Sequence[Mount]:
    """Return the mounts of a start."""
    return decode_plan(data[_HEAD.size + _HEAD.unpack_from(data)[0] :]).mounts
