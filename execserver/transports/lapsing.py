"""Closes the connections of holders whose token is revoked or over.

Their further requests are refused at once; this ends what needs no request: output, and the processes of a
session that nobody may resume.  Nothing runs while no holder is connected.
"""

from __future__ import annotations

import logging
import time
from typing import Protocol

from gevent.hub import get_hub

from execserver.access.tokens.holder import Holder
from execserver.wire.close_codes import POLICY_VIOLATION

SWEEP_S = 2.0
_log = logging.getLogger(__name__)


class Closing(Protocol):
    """A connection that can be ended in order."""

    def close(self, code: int, reason: str) -> None:
        """End the conversation once what is queued is written."""


class LapseSweep:
    """Looks every two seconds whether the tokens of connected holders still count."""

    def __init__(self) -> None:
        self._holders: dict[Closing, Holder] = {}
        self._timer = get_hub().loop.timer(SWEEP_S, SWEEP_S)

    def watch(self, connection: Closing, holder: Holder) -> None:
        """Close a connection when its holder's token has lapsed."""
        if not self._holders:
            self._timer.again(self.sweep)
        self._holders[connection] = holder

    def forget(self, connection: Closing) -> None:
        """Watch a connection no longer; do nothing if it was not watched."""
        if self._holders.pop(connection, None) is not None and not self._holders:
            self._timer.stop()

    def sweep(self) -> None:
        """Close every connection whose holder's token has lapsed."""
        now = time.time()
        for connection, holder in list(self._holders.items()):
            if reason := holder.lapsed(now):
                _log.info("a connection is closed: %s: name=%r", reason, holder.name)
                self.forget(connection)
                connection.close(POLICY_VIOLATION, reason)
