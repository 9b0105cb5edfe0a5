"""The registry calls: register, connect, validate (wire contract, remote mode).

Takes decoded JSON and returns JSON; knows neither HTTP nor sockets.  Secrets are made here, sent once, and
stored as hashes.  A refusal is an `ApiError` with a text that repeats nothing of the request.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
from collections.abc import Callable
from typing import NamedTuple, Protocol

from execserver.relay.keys import SECURITY_PROFILE, InvalidKey, fingerprint_of, key_text
from execserver.relay.limits import Bucket, Limits
from execserver.relay.metrics import Metrics
from execserver.relay.state import Grant, Outcome, Registration, RelayState
from execserver.relay.tokens import EXECUTOR, HARNESS, Token, digest_of

_log = logging.getLogger(__name__)

_BURST_S = 4.0  # registry calls that may come at once, as seconds of their steady rate
_MAX_AUTHORIZATION = 4096
_MAX_ID = 256

TAKEN_OVER_TEXT = "another executor has taken over this environment"

Json = dict[str, object]


class ApiError(Exception):
    """A call is refused: the HTTP status, a code for programs, a text for users."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class Whereabouts(NamedTuple):
    """The relay node where an executor is connected, if there are several."""

    node: str = ""
    base: str = ""  # begins URLs that lead to that very node; empty: as any other's

    @property
    def hint(self) -> str:
        """What a harness's URL ends with, so that a balancer can find the node."""
        return f"&node={self.node}" if self.node else ""


class Found(NamedTuple):
    """An environment's executor."""

    registration: Registration | None = None  # None: nobody has registered
    at: Whereabouts | None = None  # None: it is not connected


class Presence(Protocol):
    """Who is connected at the moment; the rendezvous implements it."""

    def find_executor(self, environment_id: str, seconds: float) -> Found:
        """Wait until the executor of the current registration is connected; return where it is."""

    def knows_token(self, token_id: str) -> bool:
        """Tell whether a token is still valid."""

    def registered(self, registration: Registration, outcome: Outcome) -> None:
        """Note that a registration replaced the previous one; end what was connected under that one."""


class Registry:
    """Answers the three calls of all environments."""

    def __init__(
        self,
        state: RelayState,
        presence: Presence,
        limits: Limits,
        metrics: Metrics,
        now: Callable[[], float],
    ) -> None:
        self._state = state
        self._presence = presence
        self._limits = limits
        self._metrics = metrics
        self._now = now  # seconds since 1970
        self._buckets: dict[str, Bucket] = {}

    def register(self, environment_id: str, token: Token, body: Json, base: str) -> Json:
        """Make the caller the environment's executor; `base` begins its URL, such as `wss://host`.

        Raises `ApiError`: 409 if the key was superseded, 403, 429 or 400.
        """
        self._allow(environment_id, token, EXECUTOR)
        if body.get("security_profile") != SECURITY_PROFILE:
            raise _bad(f"security_profile must be {SECURITY_PROFILE}")
        key = _key(body, "executor_public_key")
        # The prefix tells an executor's credential from a harness's (`h-`) before either is looked up.
        ticket = f"x-{secrets.token_urlsafe(32)}"
        registration = Registration(
            environment_id,
            f"reg_{secrets.token_hex(12)}",
            key,
            fingerprint_of(key),
            digest_of(ticket),
            token.id,
            self._now(),
        )
        outcome = self._state.register(registration, self._limits.superseded_keys)
        if outcome is Outcome.SUPERSEDED:
            raise ApiError(409, "executor_superseded", TAKEN_OVER_TEXT)
        self._metrics.count("registrations", outcome.value.replace(" ", "_"))
        _log.info(
            "executor registered: environment=%s registration=%s outcome=%s by=%s",
            *(environment_id, registration.registration_id, outcome.value.replace(" ", "-"), token.id),
        )
        self._presence.registered(registration, outcome)
        return {
            "environment_id": environment_id,
            "url": _url(base, environment_id, ticket),
            "security_profile": SECURITY_PROFILE,
            "executor_registration_id": registration.registration_id,
        }

    def connect(self, environment_id: str, token: Token, body: Json, base: str) -> Json:
        """Grant a harness one connection; blocks this greenlet for some seconds while the executor is away.

        Raises `ApiError`: 404 or 503 without an executor, 403, 429 or 400.
        """
        self._allow(environment_id, token, HARNESS)
        fingerprint = fingerprint_of(_key(body, "harness_public_key"))
        registration, at = self._presence.find_executor(environment_id, self._limits.connect_wait_s)
        if registration is None:
            raise ApiError(404, "environment_not_registered", "no executor has registered this environment")
        if at is None:
            raise ApiError(503, "executor_offline", "the executor of this environment is not connected")
        ticket, authorization = f"h-{secrets.token_urlsafe(32)}", secrets.token_urlsafe(32)
        now = self._now()
        self._state.expire(now)
        grant = Grant(
            environment_id,
            registration.registration_id,
            fingerprint,
            digest_of(ticket),
            digest_of(authorization),
            token.id,
            now + self._limits.grant_ttl_s,
        )
        self._state.add_grant(grant, self._limits.grants, now)
        return {
            "environment_id": environment_id,
            "url": _url(at.base or base, environment_id, ticket) + at.hint,
            "security_profile": SECURITY_PROFILE,
            "executor_registration_id": registration.registration_id,
            "executor_public_key": json.loads(registration.key),
            "harness_key_authorization": authorization,
        }

    def validate(self, environment_id: str, token: Token, body: Json) -> Json:
        """Answer an executor whether the harness of a handshake was granted a connection to it.

        An authorization is used up by the question, whatever the answer.  Raises `ApiError`: 401 if the
        harness's token was revoked since, by which the harness learns that it need not ask again; 403, 429 or
        400.
        """
        self._allow(environment_id, token, EXECUTOR)
        fingerprint = fingerprint_of(_key(body, "harness_public_key"))
        registration_id = _text(body, "executor_registration_id", _MAX_ID)
        authorization = _text(body, "harness_key_authorization", _MAX_AUTHORIZATION)
        grant, registration = self._state.take_authorization(
            environment_id, digest_of(authorization), self._now()
        )
        valid = (
            grant is not None
            and registration is not None
            # Granted for this very registration: not for an executor that was there before or came later.
            and registration_id == grant.registration_id == registration.registration_id
            and hmac.compare_digest(grant.fingerprint, fingerprint)
        )
        if valid and grant is not None and not self._presence.knows_token(grant.token_id):
            self._metrics.count("validations", "false")
            raise ApiError(401, "unauthorized", "the token of this harness is no longer valid")
        self._metrics.count("validations", "true" if valid else "false")
        if not valid:
            _log.info("handshake refused: environment=%s registration=%.40r", environment_id, registration_id)
        return {"valid": valid}

    def _allow(self, environment_id: str, token: Token, role: str) -> None:
        if token.environment_id != environment_id or not token.allows(role):
            raise ApiError(403, "forbidden", "this token is not for this environment and call")
        # After the check of the token: only environments with a token get a bucket.
        rate, now = self._limits.calls_per_s, self._now()
        bucket = self._buckets.setdefault(environment_id, Bucket(rate, rate * _BURST_S, now))
        if not bucket.allows(now):
            raise ApiError(429, "too_many_requests", "too many registry calls for this environment")


def _url(base: str, environment_id: str, ticket: str) -> str:
    # Named `token` because log formatters remove the values of such names.
    return f"{base}/rendezvous/{environment_id}?token={ticket}"


def _key(body: Json, name: str) -> str:
    try:
        return key_text(body.get(name))
    except InvalidKey as error:
        raise _bad(f"{name}: {error}") from None


def _text(body: Json, name: str, limit: int) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= limit:
        raise _bad(f"{name} must be a text of 1 to {limit} characters")
    return value


def _bad(message: str) -> ApiError:
    return ApiError(400, "invalid_request", message)
