"""What a relay hands over to its successor in the same process, as records; see `records` for the rules.

Links are numbered by their place in `PackedRendezvous.links`; a turn is the stream id of a harness's link, or
the number of the link whose turn it is, negative for one that does not go along.
"""

from __future__ import annotations

from typing import Final

import msgspec

from execserver.handover.records import PackedFrames

# From 1001 on, so that neither a server nor a relay takes the other's state for its own.
RELAY_STATE_VERSION: Final = 1001

Turn = int | bytes | None


class PackedQueue(msgspec.Struct, array_like=True, frozen=True):
    """`relay.send_queue.SendQueue`: what is in line, and the messages of each turn, in the order of turns."""

    line: list[bytes]
    control_bytes: int
    turns: list[tuple[Turn, list[bytes]]]


class PackedRelayLink(msgspec.Struct, array_like=True, frozen=True):
    """`relay.links.WebSocketLink`; `frames` is None after a Close frame was sent.

    `holding` are the links that are not read because of this one.  The facts are whether the peer was heard
    since the last ping, how many pings in a row were not answered, and how many frames were invalid.
    """

    fd: int
    peer: str
    identity: tuple[bool, str, str, bytes, str]
    frames: PackedFrames | None
    peer_closed: bool
    begun: bytes
    queue: PackedQueue
    holding: list[tuple[int, Turn]]
    facts: tuple[bool, int, int]


class PackedEnvironment(msgspec.Struct, array_like=True, frozen=True):
    """`relay.routes.Environment`; a route is its key, its harness's fingerprint, and the link if any."""

    name: str
    executor: int | None
    harnesses: list[int]
    routes: list[tuple[bytes, bytes, int | None]]


class PackedRendezvous(msgspec.Struct, array_like=True, frozen=True):
    """`relay.rendezvous.Rendezvous`: its links, and when each of them and each lost stream is due."""

    links: list[PackedRelayLink]
    environments: list[PackedEnvironment]
    pings: list[tuple[int, float]]
    closings: list[tuple[int, float]]
    stalled: list[tuple[int, float]]
    graces: list[tuple[str, bytes, float]]


class PackedHttp(msgspec.Struct, array_like=True, frozen=True):
    """A connection between two requests: what it has sent of the next one, and how long it may take.

    `token_id` is of the token that it has shown, if it has.
    """

    fd: int
    host: str
    port: int
    data: bytes
    ends: float
    token_id: str | None


class PackedRegistry(msgspec.Struct, array_like=True, frozen=True):
    """`relay.state.MemoryState`; grants oldest first, of all environments, and whose use is still allowed."""

    registrations: list[tuple[str, str, str, bytes, bytes, str, float]]
    superseded: list[tuple[str, list[bytes]]]
    grants: list[tuple[str, str, bytes, bytes, bytes, str, float]]
    unused: list[bytes]


class RelayHandover(msgspec.Struct, array_like=True, frozen=True):
    """All of it; `registry` is None where a file has it.

    `began_at` is when the relay began to hold requests back; `asker` the socket of who asked for the upgrade;
    `signals` a pipe with those that came since; `program` the file of the new program.
    """

    version: int
    from_version: str
    began_at: float
    listener: int
    connections: list[PackedHttp]
    rendezvous: PackedRendezvous
    registry: PackedRegistry | None
    asker: int | None
    signals: int
    program: int
