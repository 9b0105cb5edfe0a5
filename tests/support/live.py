"""One live connection of a replay: what came in, replies apart from notifications."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.peer import Json, Message, Peer, PeerTimeout
from tests.support.transcript import Line

WAIT = 12.0
AFTERMATH = 0.05
"""How long a connection is read on after the last recorded line."""
AFTER_TERMINATE = frozenset({-1, 137})
"""The exit codes a terminated process may have: which one is a race."""
TYPED_BY_CLOSE = b"\r\n"
"""What a terminal may show last when its other side is closed by a terminate."""

Report = Callable[[Line, str], None]


@dataclass
class Trace:
    """What the recording says about one process so far, and where its live notifications begin."""

    start: int
    streams: dict[str, bytearray] = field(default_factory=dict)
    terminated: bool = False
    given_up: bool = False
    recorded_bytes: int = 0  # of output that ours replaces


class Connection:
    """One live connection: what came in, split in replies and notifications."""

    def __init__(self, name: str, peer: Peer) -> None:
        self.name = name
        self.peer = peer
        self.replies: list[Message] = []
        self.notifications: list[Message] = []
        self.methods: dict[str, str] = {}
        self.requests: dict[str, Json] = {}
        self.traces: dict[str, Trace] = {}
        self.ended = False

    def pump(self, timeout: float) -> bool:
        """Read one message; False when the connection has ended. Raises `PeerTimeout`."""
        message = None if self.ended else self.peer.receive(timeout)
        if message is None:
            self.ended = True
            return False
        (self.replies if "id" in message else self.notifications).append(message)
        return True

    def wait(self, ready: Callable[[], bool], timeout: float = WAIT) -> bool:
        """Read messages until `ready`; False when time is up or the connection ended first."""
        deadline = time.monotonic() + timeout
        while not ready():
            try:
                if not self.pump(max(0.0, deadline - time.monotonic())):
                    return ready()
            except PeerTimeout:
                return False
        return True

    def drain(self) -> None:
        """Read what is still on its way when the last recorded line was played."""
        try:
            while self.pump(AFTERMATH):
                pass
        except PeerTimeout:
            pass
        except OSError:
            self.ended = True  # closed by a hook of the scene

    def of(self, member: str, value: str, start: int = 0) -> list[Json]:
        """Return the (method, params) of the notifications whose params have this member."""
        found = self.notifications[start:]
        return [(n["method"], n["params"]) for n in found if n["params"].get(member) == value]

    def output(self, process_id: str, stream: str, start: int = 0) -> bytes:
        """Return the bytes a process has written to a stream, in seq order."""
        chunks = [
            (p["seq"], base64.b64decode(p["chunk"]))
            for method, p in self.of("processId", process_id, start)
            if method == "process/output" and p["stream"] == stream
        ]
        return b"".join(chunk for _, chunk in sorted(chunks))

    def has(self, method: str, process_id: str, start: int = 0) -> bool:
        """Tell whether a notification of this method came for the process."""
        return any(name == method for name, _ in self.of("processId", process_id, start))
