"""The WebSockets and streams of a relay on their way to the program that takes its place, and back into life.

Only what is plain can go: what is between TLS and the socket is in this process's memory.  Packing reads
only, so a relay whose exec fails goes on as it was.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Hashable, Iterable

from execserver.eventloop.delay_queue import DelayQueue
from execserver.handover.carrier import Incoming, Outgoing
from execserver.handover.relay_records import (
    PackedEnvironment,
    PackedRelayLink,
    PackedRendezvous,
    Turn,
)
from execserver.relay.byte_streams import PlainByteStream, is_plain
from execserver.relay.identity import Identity
from execserver.relay.link_context import Owner, Shared
from execserver.relay.links import WebSocketLink
from execserver.relay.routes import Environment, Route


def pack(
    environments: Iterable[Environment], shared: Shared, graces: DelayQueue[Route], out: Outgoing
) -> PackedRendezvous:
    """Return what `Unpacking` takes; links with TLS stay behind."""
    environments = list(environments)
    found = [link for each in environments for link in each.links]
    closing = [link for link, _ in shared.shutdown_notices if link not in found]
    links = [link for link in (*found, *closing) if is_plain(link.sock)]
    numbers = _Numbers(links)
    return PackedRendezvous(
        links=[link.pack(out.keep(link.sock.fileno()), numbers.named) for link in links],
        environments=[_environment(each, numbers) for each in environments],
        pings=numbers.due(shared.pings),
        closings=numbers.due(shared.shutdown_notices),
        stalled=numbers.due(shared.stalled),
        graces=[(route.environment.name, route.key, due) for route, due in graces],
    )


class _Numbers:
    """What the links are called on the way; a stream id stands for itself."""

    def __init__(self, links: list[WebSocketLink]) -> None:
        self._numbers: dict[Hashable, int] = {link: at for at, link in enumerate(links)}
        self._others = 0  # senders that are gone, whose messages wait still

    def named(self, turn: Hashable) -> Turn:
        """Return the number of a link, below 0 for one that does not go along; anything else is returned."""
        if turn is None or isinstance(turn, bytes):
            return turn
        number = self._numbers.get(turn)
        if number is None:
            self._others += 1
            number = self._numbers[turn] = -self._others
        return number

    def of(self, link: WebSocketLink | None) -> int | None:
        """Return the number of a link that goes along; None for any other."""
        number = self._numbers.get(link, -1)
        return number if number >= 0 else None

    def due(self, queue: DelayQueue[WebSocketLink]) -> list[tuple[int, float]]:
        """Return what is due, and when."""
        found = [(self.of(link), due) for link, due in queue]
        return [(number, due) for number, due in found if number is not None]


def _environment(each: Environment, numbers: _Numbers) -> PackedEnvironment:
    harnesses = [numbers.of(link) for link in each.harnesses]
    return PackedEnvironment(
        name=each.name,
        executor=numbers.of(each.executor),
        harnesses=[number for number in harnesses if number is not None],
        routes=[(key, route.fingerprint, numbers.of(route.harness)) for key, route in each.routes.items()],
    )


class Unpacking:
    """Makes the links and streams that came along; nothing else may run before it is through."""

    def __init__(self, packed: PackedRendezvous, incoming: Incoming, shared: Shared) -> None:
        self._packed = packed
        self._incoming = incoming
        self._shared = shared
        self._links: list[WebSocketLink] = []
        self._gone: dict[Turn, Hashable] = {}

    def run(
        self, environment_of: Callable[[str], Environment], graces: DelayQueue[Route]
    ) -> list[Environment]:
        """Return the environments, in which everything goes on; `environment_of` makes an empty one."""
        packed, shared = self._packed, self._shared
        environments = {each.name: environment_of(each.name) for each in packed.environments}
        for link in packed.links:
            name = link.identity[1]
            owner = environments.get(name) or environment_of(name)  # of one that closes it may be gone
            self._links.append(self._made(link, owner))
        for each in packed.environments:
            self._fill(environments[each.name], each)
        for made, link in zip(self._links, packed.links, strict=True):
            made.restore(link, self._turn_of)
        for queue, due in (
            (shared.pings, packed.pings),
            (shared.shutdown_notices, packed.closings),
            (shared.stalled, packed.stalled),
        ):
            for number, when in due:
                queue.restore(self._links[number], when)
        for name, key, when in packed.graces:
            graces.restore(environments[name].routes[key], when)
        return list(environments.values())

    def go_on(self) -> None:
        """Read and write again; for once the owner knows the environments."""
        for link in self._links:
            link.go_on()

    def _made(self, packed: PackedRelayLink, owner: Owner) -> WebSocketLink:
        sock = socket.socket(fileno=self._incoming.take(packed.fd))
        sock.setblocking(False)
        return WebSocketLink(
            PlainByteStream(sock), packed.peer, Identity(*packed.identity), owner, self._shared
        )

    def _fill(self, environment: Environment, packed: PackedEnvironment) -> None:
        if packed.executor is not None:
            environment.executor = self._links[packed.executor]
        environment.harnesses = {self._links[number] for number in packed.harnesses}
        for key, fingerprint, number in packed.routes:
            harness = None if number is None else self._links[number]
            environment.routes[key] = Route(environment, key, fingerprint, harness)
            if harness is not None:
                harness.streams.add(key)

    def _turn_of(self, turn: Turn) -> Hashable:
        if not isinstance(turn, int):
            return turn
        return self._links[turn] if turn >= 0 else self._gone.setdefault(turn, object())
