"""What is in the journals, beside what goes from one program to the next in an upgrade."""

from __future__ import annotations

from typing import Final

import msgspec

from execserver.handover.records import STATE_VERSION, PackedProcess
from execserver.version import __version__

# The same program reads what it has written, unless somebody replaces files that it runs from.
VERSION: Final = f"{__version__} {STATE_VERSION}"


class Head(msgspec.Struct, array_like=True, frozen=True):
    """What holds for the whole server: the version of the state, the keys of its sockets, its limit of files.

    `file` is that of the listening socket: path, device, inode.
    """

    version: str
    soft_nofile: int
    listener: int
    metrics: int | None
    file: tuple[str, int, int] | None


class Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """A process; its descriptors are named by keys.  `input_end` is how much of its input was accepted."""

    process: PackedProcess
    input_end: int
