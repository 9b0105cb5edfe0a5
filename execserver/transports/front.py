"""The way by which a server's clients come, as far as another program is to go on with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from execserver.handover.carrier import Outgoing
    from execserver.handover.records import PackedListener, PackedRemote
    from execserver.transports.open_connections import OpenConnections


class Front(NamedTuple):
    """The connections, and what packs the way itself, with those of them that go along."""

    open: OpenConnections[Any]
    pack: Callable[[Outgoing], PackedListener | PackedRemote]
