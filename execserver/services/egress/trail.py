"""What the audit log tells of the connections of one process.

Each destination is recorded once for each decision, when it first comes, and again when it has come ten times
as often as it was last told.  Beyond `MAX_DESTINATIONS` further ones are counted together.  So a process that
asks in a loop, or for ever new names, adds no more to the log than a few thousand lines, and pushes nothing
older out of it.  Recorded are host, port and protocol, never a path, a query or a header, and of a refusal
the rules that were missing, if that is why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from execserver.egress.decisions import DecisionRecord
    from execserver.services.reporting.audit import AuditTrail

MAX_DESTINATIONS = 256
_TELL_AGAIN = 10
_OTHERS = ("", 0, "", "", "")

_Destination = tuple[str, int, str, str, str]


class NetworkTrail:
    """Records the decisions about one process; `whom` are the members that say whose it is."""

    def __init__(self, log: AuditTrail, process_id: str, whom: dict[str, object]) -> None:
        self._log = log
        self._process_id = process_id
        self._whom = whom
        self._times: dict[_Destination, int] = {}

    def decided(self, record: DecisionRecord) -> None:
        """Take a decision."""
        verdict, question = record.verdict, record.question
        protocol = question.protocol.value
        key = (question.host, question.port, protocol, verdict.action.value, verdict.reason)
        if key not in self._times and len(self._times) >= MAX_DESTINATIONS:
            key = _OTHERS
        times = self._times[key] = self._times.get(key, 0) + 1
        if _is_told(times):
            self._record(key, verdict.source.value, verdict.rules, times)

    def _record(self, key: _Destination, source: str, rules: tuple[str, ...], times: int) -> None:
        host, port, protocol, decision, reason = key
        repeated = {"times": times} if times > 1 else {}
        if key == _OTHERS:
            members: dict[str, object] = {"others": True}
        else:
            members = {"host": host, "port": port, "protocol": protocol, "decision": decision}
            members |= {"reason": reason, "source": source, **({"rules": rules} if rules else {})}
        self._log.record("network", **self._whom, process=self._process_id, **members, **repeated)


def _is_told(times: int) -> bool:
    while times % _TELL_AGAIN == 0:
        times //= _TELL_AGAIN
    return times == 1
