"""The audit log of the server, as far as clients see it."""

from __future__ import annotations

from execserver.protocol.record import U64, Record


class AuditHeadResponse(Record, frozen=True, kw_only=True):
    """The number of the newest record, and the SHA-256 of its line in hexadecimal digits.

    Kept elsewhere, it shows later whether the log up to there is what it was.
    """

    records: U64
    sha256: str
