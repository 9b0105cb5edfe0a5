"""What a program inherits from an intercepted process besides its descriptors, read from /proc."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import struct

from execserver.zygote.groups import process_stat, zombie_status

_STATUS_BYTES = 4096
# The permitted and effective capabilities of a program follow from these, whatever its process has used.
_CAPABILITIES = (b"\nCapInh:", b"\nCapBnd:", b"\nCapAmb:")
_PERMITTED = b"\nCapPrm:"
# What stands between these two lines is mostly the same for all processes of a shell: it is read once.
_FIRST_MASK, _BEHIND_MASKS = b"\nSigBlk:", b"\nCpus_allowed_list:"
_MASKS_KEPT = 16
_PIDFD_THREAD = os.O_EXCL  # since Linux 6.9; readable when that thread has ended, not only its process
_INFO = 0xC040FF0B  # PIDFD_GET_INFO; how a process ended since Linux 6.15
_INFO_EXIT = 8
_INFO_BYTES = 64


class Status:
    """What /proc/TID/status says: process, parent, tracer (0: none), umask, and how many filters it has.

    `ignored`, `caught` and `blocked` are masks of signals, bit N-1 for signal N; `cpus` is the mask of those
    that it may run on, as the kernel writes it.  `ids` stands for user, groups and capabilities, all that a
    program which it executes keeps, and is only compared.  `capabilities` is a mask of all that it has, or
    could get by executing something in its user namespace.

    Raises OSError, ProcessLookupError for a thread that has ended: of a zombie the kernel tells a part only.
    """

    __slots__ = (
        *("blocked", "capabilities", "caught", "cpus", "filters", "ids", "ignored", "parent", "process"),
        *("tracer", "umask"),
    )

    def __init__(self, tid: int) -> None:
        opened = os.open(b"/proc/%d/status" % tid, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = piece = os.read(opened, _STATUS_BYTES)
            while len(piece) == _STATUS_BYTES:  # of a member of very many groups
                piece = os.read(opened, _STATUS_BYTES)
                text += piece
        finally:
            os.close(opened)
        self.process = int(_value(text, b"\nTgid:"))
        self.parent = int(_value(text, b"\nPPid:"))
        self.tracer = int(_value(text, b"\nTracerPid:"))
        self.umask = int(_value(text, b"\nUmask:"), 8)
        user, group, groups = (_value(text, name) for name in (b"\nUid:", b"\nGid:", b"\nGroups:"))
        start, end = text.find(_FIRST_MASK), text.find(_BEHIND_MASKS)
        masks = text[start : end + 1] if start >= 0 else b""
        signals, self.cpus, self.filters, compared, self.capabilities = _masks(masks)
        self.blocked, self.ignored, self.caught = signals
        self.ids = user, group, groups, compared


def open_process(tid: int) -> int:
    """Return a pidfd of a thread, or of its process where the kernel has none of threads.  Raises OSError."""
    try:
        return os.pidfd_open(tid, _PIDFD_THREAD)
    except OSError:
        # Without the flag the kernel takes the number of a process only.
        return os.pidfd_open(Status(tid).process)


def death_signal(pidfd: int, tid: int) -> int:
    """Return the signal that killed a process; 0 if it ended otherwise or that is no longer known."""
    status = _exit_status(pidfd)
    if status is None:
        # An older kernel: a zombie still has its status in /proc, until its parent reaps it.
        stat = process_stat(tid)
        status = None if stat is None else zombie_status(tid, stat[1])
    return os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else 0


def _exit_status(pidfd: int) -> int | None:
    info = bytearray(_INFO_BYTES)
    struct.pack_into("=Q", info, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _INFO, info)
    except OSError:
        return None
    (mask,) = struct.unpack_from("=Q", info)  # what the kernel has filled in
    return int(struct.unpack_from("=i", info, 60)[0]) if mask & _INFO_EXIT else None


@functools.lru_cache(_MASKS_KEPT)
def _masks(text: bytes) -> tuple[tuple[int, ...], bytes, int, tuple[bytes, ...], int]:
    """Return masks of signals and processors, the count of filters, capabilities to compare, and all."""
    signals = tuple(int(_value(text, name), 16) for name in (_FIRST_MASK, b"\nSigIgn:", b"\nSigCgt:"))
    compared = tuple(_value(text, name) for name in _CAPABILITIES)
    counted = b"\nSeccomp_filters:"  # since Linux 5.9
    filters = int(_value(text, counted)) if counted in text else 0
    all_of_them = 0
    for mask in (*compared, _value(text, _PERMITTED)):
        all_of_them |= int(mask, 16)
    return signals, _value(text, b"\nCpus_allowed:"), filters, compared, all_of_them


def _value(text: bytes, name: bytes) -> bytes:
    start = text.find(name)
    if start < 0:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    start += len(name)
    return text[start : text.index(b"\n", start)].strip()
