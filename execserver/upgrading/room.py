"""Memory for what goes along with an upgrade, found in a thread while everybody is still served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gevent.hub import get_hub

from execserver.eventloop.deadline import at_most
from execserver.handover.carrier import Outgoing

if TYPE_CHECKING:
    from gevent.event import AsyncResult

_MUCH_BYTES: Final = 1024 * 1024  # for less a thread would take longer
_WAIT_S: Final = 2.0  # 1 GiB takes a third of a second, and all threads may be busy with slow disks


def outgoing_for(size: int) -> Outgoing:
    """Return what takes the state, with room for about so many bytes beside the records.

    Where the room takes too long to find, it is without any.
    """
    out = Outgoing()
    if size < _MUCH_BYTES:
        return out
    found: AsyncResult[None] | None = None
    with at_most(_WAIT_S):
        found = get_hub().threadpool.spawn(out.make_room, size + size // 8)
        found.wait()
    if found is not None and found.ready():
        return out
    if found is not None:
        found.rawlink(lambda _: out.close())
    return Outgoing()
