"""What a child takes on before it becomes its program: rlimits, in a request to the zygote and applied.

Each counts for one process, and what it starts inherits it.  There is none for memory: address space is not
memory (node and java reserve gigabytes of it), and the number of processes would count for the whole user.
"""

from __future__ import annotations

import resource
import struct

_RECORD = struct.Struct("<3qB")
_NONE = -1
_CPU_GRACE_S = 1  # between SIGXCPU, which a program may catch, and SIGKILL


class ChildLimits(tuple[int, int, int, bool]):
    """CPU seconds, bytes of a file and open files, -1 for none; whether the child begins in a control group.

    The descriptor of that group travels with the request, behind all others.
    """

    __slots__ = ()

    def __new__(
        cls,
        cpu_s: int = _NONE,
        file_bytes: int = _NONE,
        open_files: int = _NONE,
        grouped: bool = False,
    ) -> ChildLimits:
        return super().__new__(cls, (cpu_s, file_bytes, open_files, grouped))

    @property
    def grouped(self) -> bool:
        """Whether the child begins in a control group."""
        return self[3]

    def apply(self) -> None:
        """Take them on, for this process and all that it starts; never above what it may have now."""
        cpu_s, file_bytes, open_files, _ = self
        if cpu_s != _NONE:
            _lower(resource.RLIMIT_CPU, cpu_s, cpu_s + _CPU_GRACE_S)
        if file_bytes != _NONE:
            _lower(resource.RLIMIT_FSIZE, file_bytes, file_bytes)
        if open_files != _NONE:
            _lower(resource.RLIMIT_NOFILE, open_files, open_files)


RECORD_BYTES = _RECORD.size


def encode_limits(limits: ChildLimits) -> bytes:
    """Return the limits as bytes.  Raises struct.error for a number out of range."""
    return _RECORD.pack(*limits)


def decode_limits(data: bytes) -> ChildLimits:
    """Return the limits in bytes; raise ValueError for what is none."""
    if len(data) != _RECORD.size:
        raise ValueError("limits that are cut")
    cpu_s, file_bytes, open_files, grouped = _RECORD.unpack(data)
    if min(cpu_s, file_bytes, open_files) < _NONE or grouped > 1:
        raise ValueError("limits out of range")
    return ChildLimits(cpu_s, file_bytes, open_files, bool(grouped))


def _lower(kind: int, soft: int, hard: int) -> None:
    _, most = resource.getrlimit(kind)
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))
