"""What an operator lays over a server, whatever its clients ask for, as the command line says it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.listen_url import WsListen


class WatchOptions:
    """Where metrics are served, where an audit log is written, and the file of rules for the network.

    Each is None where it is not asked for.
    """

    __slots__ = ("audit", "is_required", "metrics", "network_rules")

    def __init__(
        self,
        metrics: WsListen | None,
        audit: str | None,
        *,
        is_required: bool,
        network_rules: str | None = None,
    ) -> None:
        self.metrics = metrics
        self.audit = audit
        self.is_required = is_required  # what cannot be recorded is not done
        self.network_rules = network_rules

    @property
    def watch(self) -> bool:
        """True if somebody wants to know what happens."""
        return self.metrics is not None or self.audit is not None
