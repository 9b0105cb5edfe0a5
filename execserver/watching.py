"""What an operator has a server watched by, as the command line says it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.listen_url import WsListen


class WatchOptions:
    """Where metrics are served and where an audit log is written, each None where it is not asked for."""

    __slots__ = ("audit", "is_required", "metrics")

    def __init__(self, metrics: WsListen | None, audit: str | None, *, is_required: bool) -> None:
        self.metrics = metrics
        self.audit = audit
        self.is_required = is_required  # what cannot be recorded is not done
