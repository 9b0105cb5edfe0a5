"""Paths that a box tells, as bytes: those of another kind of host, or with a NUL byte, are none here."""

from __future__ import annotations

from execserver.client.errors import ProtocolViolation
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.paths import PathUri


def native(path: PathUri) -> bytes:
    """Return the path.  Raises ProtocolViolation."""
    try:
        return path.native()
    except InvalidRequest:
        raise ProtocolViolation("the server sends paths of another kind of host") from None
