"""What goes along beside the records of a handover, in one process."""

from __future__ import annotations

from collections.abc import Sequence


class Beside:
    """Stands for both ends: takes what is packed, and has it for whoever restores."""

    def __init__(self) -> None:
        self._data = b"of another process"

    def put(self, pieces: Sequence[bytes]) -> int:
        """Take bytes; return where they begin."""
        at = len(self._data)
        self._data += b"".join(pieces)
        return at

    @property
    def view(self) -> memoryview:
        """All that was taken."""
        return memoryview(self._data)
