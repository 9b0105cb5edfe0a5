"""The relay state in a Redis or Valkey that several relays share.

Grants end by the engine's own clock; nothing has to be expired.  What stands there and is not what a relay
writes is an error of the engine (503), never an answer: nobody is refused for good because of it.
"""

from __future__ import annotations

from execserver.relay.engine.client import Engine, EngineRefused
from execserver.relay.engine.resp import Command, Reply
from execserver.relay.engine.scripts import GRANT, REGISTER
from execserver.relay.state import Grant, Granted, Outcome, Registration

_REGISTRATION = ("id", "key", "fp", "ticket", "token", "at")


class EngineState:
    """A `RelayState` in an engine, which belongs to somebody else."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def register(self, registration: Registration, remembered: int) -> Outcome:
        """See `RelayState`.  The node at which the executor of the previous one is connected is told."""
        name = registration.environment_id
        keys = (f"r:{{{name}}}", f"s:{{{name}}}", f"p:{{{name}}}")
        (outcome,) = self._engine.call(
            REGISTER.on(
                keys,
                *(registration.registration_id, registration.key, registration.fingerprint.hex()),
                *(registration.ticket.hex(), registration.token_id, repr(registration.created)),
                *(remembered, name),
            )
        )
        try:
            return Outcome(text_of(outcome))
        except ValueError:
            raise unreadable(keys[0]) from None

    def registration(self, environment_id: str) -> Registration | None:
        """See `RelayState`."""
        (fields,) = self._engine.call(ask_registration(environment_id))
        return registration_of(environment_id, fields)

    def add_grant(self, grant: Grant, kept: int, now: float) -> None:
        """See `RelayState`."""
        name = grant.environment_id
        ticket, authorization = grant.ticket.hex(), grant.authorization.hex()
        binary = (grant.fingerprint.hex(), ticket, authorization)
        text = "|".join((grant.registration_id, *binary, grant.token_id, repr(grant.expires)))
        tickets, authorizations = f"g:{{{name}}}:", f"a:{{{name}}}:"
        keys = (f"k:{{{name}}}", tickets + ticket, authorizations + authorization)
        lasts = max(1, round((grant.expires - now) * 1000))
        pair = f"{ticket}:{authorization}"
        self._engine.call(GRANT.on(keys, text, lasts, pair, kept, tickets, authorizations))

    def grant_for_ticket(self, environment_id: str, ticket: bytes, now: float) -> Granted:
        """See `RelayState`."""
        return self._granted(environment_id, ("GET", f"g:{{{environment_id}}}:{ticket.hex()}"), now)

    def take_authorization(self, environment_id: str, authorization: bytes, now: float) -> Granted:
        """See `RelayState`."""
        return self._granted(environment_id, ("GETDEL", f"a:{{{environment_id}}}:{authorization.hex()}"), now)

    def expire(self, now: float) -> None:
        """See `RelayState`."""

    def close(self) -> None:
        """See `RelayState`."""

    def _granted(self, environment_id: str, command: Command, now: float) -> Granted:
        # In one round trip; the registration is looked at last, and can only be newer than the grant.
        text, fields = self._engine.call(command, ask_registration(environment_id))
        return Granted(_grant(environment_id, text, now), registration_of(environment_id, fields))


def ask_registration(environment_id: str) -> Command:
    """Return the command whose answer `registration_of` reads."""
    return ("HMGET", f"r:{{{environment_id}}}", *_REGISTRATION)


def registration_of(environment_id: str, fields: Reply) -> Registration | None:
    """Read the answer to HMGET of a registration; None if there is none.  Raises EngineRefused."""
    if not isinstance(fields, list) or len(fields) != len(_REGISTRATION):
        raise unreadable(f"r:{{{environment_id}}}")
    if not any(fields):
        return None
    registration_id, key, fingerprint, ticket, token_id, created = map(text_of, fields)
    try:
        return Registration(
            environment_id,
            registration_id,
            key,
            bytes.fromhex(fingerprint),
            bytes.fromhex(ticket),
            token_id,
            float(created),
        )
    except ValueError:
        raise unreadable(f"r:{{{environment_id}}}") from None


def text_of(reply: Reply) -> str:
    """Return the text of a string reply, empty for any other."""
    return reply.decode("utf-8", "replace") if isinstance(reply, bytes) else ""


def unreadable(key: str) -> EngineRefused:
    """Return the error for a key whose value no relay wrote."""
    return EngineRefused(f"the engine holds something unreadable at {key}")


def _grant(environment_id: str, text: Reply, now: float) -> Grant | None:
    if text is None:
        return None
    try:
        registration_id, *binary, token_id, expires = text_of(text).split("|")
        fingerprint, ticket, authorization = map(bytes.fromhex, binary)
        grant = Grant(
            *(environment_id, registration_id, fingerprint, ticket, authorization, token_id, float(expires))
        )
    except ValueError:
        raise unreadable(f"a grant of {environment_id}") from None
    return grant if grant.expires > now else None
