"""The paths of the host that Landlock grants for reading: everything but devices and terminals.

Landlock takes nothing away below a directory that it has granted.  So it grants not the root but what is in
it, and does the same with each directory above a file system of devices.  A process that is restricted
already cannot read what is made in such a directory later.
"""

from __future__ import annotations

import os

from execserver.sandbox.kernel.mounts_old import unescaped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_KINDS = (b"devtmpfs ", b"devpts ")


def all_but_devices(root: bytes = b"/", table: str = "/proc/self/mountinfo") -> Iterator[bytes]:
    """Yield paths below a root that together are everything but devices and terminals; some may be gone."""
    devices = _device_file_systems(table)
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        for name in _names_in(folder):
            path = os.path.join(folder, name)
            if path in devices:
                continue
            if any(device.startswith(path + b"/") for device in devices):
                waiting.append(path)
            else:
                yield path


def _names_in(folder: bytes) -> list[bytes]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # what this process cannot list, it could not read either


def _device_file_systems(table: str) -> set[bytes]:
    """Return where file systems of devices and terminals are mounted; /dev in any case."""
    found = {b"/dev"}
    with open(table, "rb") as mounts:
        for line in mounts:
            fields, _, kind = line.partition(b" - ")
            if kind.startswith(_KINDS):
                found.add(unescaped(fields.split(b" ")[4]))
    return found
