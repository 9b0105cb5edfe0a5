"""The codes of Close frames (RFC 6455, section 7.4.1), apart from frames: not every transport has those."""

from __future__ import annotations

from typing import Final

GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
INVALID_DATA: Final = 1007
POLICY_VIOLATION: Final = 1008
MESSAGE_TOO_BIG: Final = 1009
INTERNAL_ERROR: Final = 1011
SERVICE_RESTART: Final = 1012
