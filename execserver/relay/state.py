"""The relay state: the registration of each environment, superseded keys, and granted connections.

`RelayState` is the interface of a storage: the memory of this process here, a file in `sqlite_state`, an
engine that several nodes share in `engine.state`.  Each method is one atomic step.  Secrets come in as hashes
only.  Times are arguments, in seconds since 1970.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from execserver.handover.relay_records import PackedRegistry


class Registration(NamedTuple):
    """The executor that an environment belongs to, until a new key takes over."""

    environment_id: str
    registration_id: str
    key: str  # as `keys.key_text` returns it
    fingerprint: bytes
    ticket: bytes  # hash of the credential in the executor's rendezvous URL
    token_id: str
    created: float


class Grant(NamedTuple):
    """One harness connection that was allowed: its credential, and what the executor will ask about."""

    environment_id: str
    registration_id: str
    fingerprint: bytes  # of the harness's key
    ticket: bytes  # hash of the credential in the harness's rendezvous URL
    authorization: bytes  # hash of the authorization, which is valid once
    token_id: str
    expires: float


class Granted(NamedTuple):
    """What one look finds, since an engine is asked over a network: a grant, and what it has to fit."""

    grant: Grant | None
    registration: Registration | None  # the environment's current one, also where there is no grant


class Outcome(Enum):
    """The result of a register call."""

    FIRST = "first"
    AGAIN = "again"  # the same key
    TAKEN_OVER = "taken over"  # a new key; the previous one is superseded
    SUPERSEDED = "superseded"  # refused, or two executors would evict each other for ever


class RelayState(Protocol):
    """The storage of a relay."""

    def register(self, registration: Registration, remembered: int) -> Outcome:
        """Make this the environment's registration, unless its key was superseded.

        Keeps the `remembered` newest superseded keys of the environment.
        """

    def registration(self, environment_id: str) -> Registration | None:
        """Return the current registration."""

    def add_grant(self, grant: Grant, kept: int, now: float) -> None:
        """Store a grant; keep the `kept` newest of its environment."""

    def grant_for_ticket(self, environment_id: str, ticket: bytes, now: float) -> Granted:
        """Return the unexpired grant of a rendezvous credential, as often as asked."""

    def take_authorization(self, environment_id: str, authorization: bytes, now: float) -> Granted:
        """Return the unexpired grant of an authorization, the first time it is asked for; then none."""

    def expire(self, now: float) -> None:
        """Remove expired grants."""

    def close(self) -> None:
        """Release open files."""


class MemoryState:
    """A `RelayState` that ends with the process."""

    def __init__(self) -> None:
        self._registrations: dict[str, Registration] = {}
        self._superseded: dict[str, dict[bytes, None]] = {}
        self._grants: dict[str, dict[bytes, Grant]] = {}  # environment -> ticket -> grant, the oldest first
        self._by_ticket: dict[bytes, Grant] = {}  # of all environments, the oldest first
        self._unused: dict[bytes, bytes] = {}  # authorization -> ticket

    def register(self, registration: Registration, remembered: int) -> Outcome:
        """See `RelayState`."""
        name = registration.environment_id
        before = self._registrations.get(name)
        superseded = self._superseded.get(name, {})
        if registration.fingerprint in superseded:
            return Outcome.SUPERSEDED
        self._registrations[name] = registration
        if before is None:
            return Outcome.FIRST
        if before.fingerprint == registration.fingerprint:
            return Outcome.AGAIN
        self._superseded.setdefault(name, superseded)[before.fingerprint] = None
        while len(superseded) > remembered:
            del superseded[next(iter(superseded))]
        return Outcome.TAKEN_OVER

    def registration(self, environment_id: str) -> Registration | None:
        """See `RelayState`."""
        return self._registrations.get(environment_id)

    def add_grant(self, grant: Grant, kept: int, now: float) -> None:
        """See `RelayState`."""
        grants = self._grants.setdefault(grant.environment_id, {})
        grants[grant.ticket] = self._by_ticket[grant.ticket] = grant
        self._unused[grant.authorization] = grant.ticket
        while len(grants) > kept:
            self._forget(next(iter(grants.values())))

    def grant_for_ticket(self, environment_id: str, ticket: bytes, now: float) -> Granted:
        """See `RelayState`."""
        grant = self._by_ticket.get(ticket)
        is_good = grant is not None and grant.environment_id == environment_id and grant.expires > now
        return Granted(grant if is_good else None, self.registration(environment_id))

    def take_authorization(self, environment_id: str, authorization: bytes, now: float) -> Granted:
        """See `RelayState`."""
        ticket = self._unused.get(authorization)
        if ticket is None or self._by_ticket[ticket].environment_id != environment_id:
            return Granted(None, self.registration(environment_id))
        del self._unused[authorization]
        return self.grant_for_ticket(environment_id, ticket, now)

    def expire(self, now: float) -> None:
        """See `RelayState`."""
        # Called for each grant, so it costs by what expires, not by how many environments there are.
        while self._by_ticket:
            oldest = next(iter(self._by_ticket.values()))
            if oldest.expires > now:
                return  # the others are newer
            self._forget(oldest)

    def close(self) -> None:
        """See `RelayState`."""

    def pack(self) -> PackedRegistry:
        """Return what `restore` takes."""
        from execserver.handover.relay_records import PackedRegistry  # late, as all of an upgrade

        return PackedRegistry(
            registrations=[(*each,) for each in self._registrations.values()],
            superseded=[(name, list(keys)) for name, keys in self._superseded.items()],
            grants=[(*each,) for each in self._by_ticket.values()],
            unused=list(self._unused),
        )

    def restore(self, packed: PackedRegistry) -> None:
        """Become what was packed; called before anything else."""
        self._registrations = {each[0]: Registration(*each) for each in packed.registrations}
        self._superseded = {name: dict.fromkeys(keys) for name, keys in packed.superseded}
        for grant in (Grant(*each) for each in packed.grants):
            self._grants.setdefault(grant.environment_id, {})[grant.ticket] = grant
            self._by_ticket[grant.ticket] = grant
        tickets = {grant.authorization: grant.ticket for grant in self._by_ticket.values()}
        self._unused = {each: tickets[each] for each in packed.unused}

    def _forget(self, grant: Grant) -> None:
        grants = self._grants[grant.environment_id]
        del grants[grant.ticket]
        if not grants:
            del self._grants[grant.environment_id]
        del self._by_ticket[grant.ticket]
        self._unused.pop(grant.authorization, None)
