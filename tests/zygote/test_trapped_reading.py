"""What is read of a caller by the shortest way: its path in its memory, and its notification."""

from __future__ import annotations

import ctypes
import os

from execserver.sandbox.kernel.syscalls import Kernel
from execserver.zygote.supervision.trap import notify
from execserver.zygote.supervision.trap.process_memory import Memory


def test_a_short_path_is_the_path_unless_it_is_long_or_cannot_be_read() -> None:
    room = ctypes.create_string_buffer(b"/bin/false\0/bin/true\0" + b"x" * 255 + b"\0" + b"y" * 300)
    at = ctypes.addressof(room)
    memory = Memory(os.getpid())
    try:
        for place, path in ((0, b"/bin/false"), (5, b"false"), (11, b"/bin/true"), (21, b"x" * 255)):
            assert memory.short_path(at + place) == path == memory.path(at + place)
        assert memory.short_path(at + 10) == b""  # there is none
        for address in (at + 277, 1, 0, (1 << 63) + 1, (1 << 64) - 1):
            assert memory.short_path(address) == b""
    finally:
        memory.close()


def test_a_notification_is_taken_apart_as_far_as_it_is_needed() -> None:
    kernel = Kernel()
    execve, execveat = (number for number in notify._CALLS[kernel.machine][:2])
    listener = notify.Listener(os.open("/dev/null", os.O_RDONLY), kernel)
    try:
        for number, address in ((execve, 11), (execveat, 0)):
            data = bytearray(notify._NOTIFICATION.pack(7, 8, 0, number, 9, 10, 11, 12, 13, 14, 15, 16))
            whole = listener.unpacked(data)
            assert (whole.id, whole.tid, whole.at_folder) == (7, 8, number == execveat)
            assert whole.arguments == (11, 12, 13, 14, 15, 16)
            assert listener.path_of(data) == (7, 8, address)
    finally:
        listener.close()
