"""What a copy leaves out because it is no file, folder or link: devices, FIFOs and sockets.

Told in one line, whatever their number; held are that and the first.
"""

from __future__ import annotations

from execserver.box.shown import shown
from execserver.box.trees.nodes import MAX_NODES, TooLarge


class Others:
    """Counts them as they are found."""

    def __init__(self) -> None:
        self.count = 0
        self._first = b""

    def clear(self) -> None:
        """Begin anew, as a further look does."""
        self.count, self._first = 0, b""

    def add(self, path: bytes) -> None:
        """Count one.  Raises TooLarge for more than a tree may have names."""
        self._first = self._first or path
        self.count += 1
        if self.count > MAX_NODES:
            raise TooLarge(f"more than {MAX_NODES} devices, FIFOs and sockets")

    @property
    def text(self) -> str:
        """What a person is told; empty if there are none."""
        if not self.count:
            return ""
        first = f"left out: {shown(self._first, 300)}"
        if self.count == 1:
            return f"{first}: it is no file, folder or link"
        return f"{first}, and {self.count - 1} more that are no files, folders or links"
