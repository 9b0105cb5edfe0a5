"""What uploads and downloads have in common: what they report, and what they ask of a session."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from execserver.client.errors import TransferFailed
from execserver.protocol.environment import EnvironmentInfo, Extensions
from execserver.protocol.method import Method
from execserver.protocol.record import Record

P = TypeVar("P", bound=Record)
R = TypeVar("R", bound=msgspec.Struct)

MOST_NOTES = 10_000
"""How many failures, and names that were left out, are told; a transfer with more failures ends."""

LocalPath: TypeAlias = str | bytes | os.PathLike[str]
"""A path of this machine."""

Progress: TypeAlias = Callable[[int], object]
"""Called in the loop with the bytes of content that are through so far."""


class Host(Protocol):
    """What carries out calls, and tells what the server can do: a session."""

    @property
    def environment_info(self) -> EnvironmentInfo | None:
        """What the server says of itself."""

    @property
    def extensions(self) -> Extensions:
        """What only some servers have."""

    async def call(
        self, method: Method[P, R], params: P, *, resend: bool = False, timeout: float | None = None
    ) -> R:
        """Return the result of one call."""


class Transfer(NamedTuple):
    """What was copied; `left_out` tells of what is no file, folder or link, as text that a terminal shows."""

    files: int
    bytes: int
    left_out: tuple[str, ...] = ()


class Account:
    """Counts what goes through, and collects what fails."""

    def __init__(self, progress: Progress | None) -> None:
        self.files = 0
        self.bytes = 0
        self._progress = progress
        self._left_out: list[str] = []
        self._errors: list[tuple[str, str]] = []

    def passed(self, size: int) -> None:
        """Note so many bytes of content."""
        if size:
            self.bytes += size
            if self._progress is not None:
                self._progress(self.bytes)

    def leave_out(self, text: str) -> None:
        """Note something that is no file, folder or link; only the first ones are kept."""
        if len(self._left_out) < MOST_NOTES:
            self._left_out.append(text)

    def fail(self, name: str, reason: str) -> None:
        """Note a failure; the rest goes on.  Raises TransferFailed if there are too many."""
        self._errors.append((name, reason))
        if len(self._errors) >= MOST_NOTES:
            raise self.failure()

    def failure(self) -> TransferFailed:
        """Return the error that has all failures."""
        return TransferFailed(tuple(self._errors))

    def result(self) -> Transfer:
        """Return what was done.  Raises TransferFailed if not everything was."""
        if self._errors:
            raise self.failure()
        return Transfer(self.files, self.bytes, tuple(self._left_out))
