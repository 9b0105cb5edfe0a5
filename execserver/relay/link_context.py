"""What surrounds a rendezvous WebSocket link: its owner, and what all links of a relay share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from execserver.eventloop.delay_queue import DelayQueue
from execserver.eventloop.liveness import LivenessSweep
from execserver.relay.admission import OpenSockets
from execserver.relay.limits import Limits
from execserver.wire.websocket import FrameLimits

if TYPE_CHECKING:
    from execserver.relay.links import WebSocketLink

_RECEIVE_BYTES = 384 * 1024  # handled at once, above the largest frame; then the loop turns to other links
_MAX_FRAGMENTS = 64


class Watcher(Protocol):
    """The part of an event loop watcher that a link uses."""

    def start(self, callback: Callable[[], None]) -> None:
        """Call it whenever the event comes."""

    def stop(self) -> None:
        """Call nothing any more."""


class Owner(Protocol):
    """The receiver of a link's messages.  Called in the event loop, so it must not block."""

    def receive(self, link: WebSocketLink, messages: list[bytes]) -> None:
        """Take messages, in order."""

    def lost(self, link: WebSocketLink, why: str) -> None:
        """Note that the link neither delivers nor takes messages any more; called once."""


class Shared:
    """What all links of a relay share: limits, timer queues, and one receive buffer."""

    def __init__(self, limits: Limits, tcp_timeout_s: float) -> None:
        self.limits = limits
        self.frame_limits = FrameLimits(limits.frame_bytes, limits.frame_bytes, _MAX_FRAGMENTS)
        self.buffer = bytearray(_RECEIVE_BYTES)
        self.view = memoryview(self.buffer)
        self.pings: DelayQueue[WebSocketLink] = DelayQueue(limits.ping_s, lambda link: link.ping())
        self.shutdown_notices: DelayQueue[WebSocketLink] = DelayQueue(
            limits.close_timeout_s, lambda link: link.end_shutdown_notice()
        )
        self.stalled: DelayQueue[WebSocketLink] = DelayQueue(limits.stalled_s, lambda link: link.end_stall())
        self.liveness = LivenessSweep(tcp_timeout_s)
        self.open_sockets = OpenSockets()  # those that are closing included
