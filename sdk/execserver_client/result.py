"""What came of a command."""

from __future__ import annotations

import msgspec

from execserver.client.errors import OutputGap
from execserver.protocol.resource_limits import ProcessEnd, ResourceUsage


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A command that has ended: `exit_code`, and its output as bytes.

    On a terminal all output is in `stdout`.  `exit_code` is 128 + N after signal N on this project's server,
    and -1 if no server knows it (also in a `CommandTimeout`).  `sandbox_denied`: its sandbox made it fail.
    `gaps`: output that was lost, only with `allow_gaps`.  With `limits`, `ended` is why it did not exit by
    itself, None if it did, and `usage` what it used.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    sandbox_denied: bool = False
    gaps: tuple[OutputGap, ...] = ()
    ended: ProcessEnd | None = None
    usage: ResourceUsage | None = None

    @property
    def ok(self) -> bool:
        """True if the exit code is 0."""
        return self.exit_code == 0

    @property
    def text(self) -> str:
        """Stdout as text; bytes that are no UTF-8 are replaced by U+FFFD."""
        return self.stdout.decode("utf-8", "replace")
