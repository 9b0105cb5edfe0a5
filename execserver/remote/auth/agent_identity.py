"""Agent Identity: a signed token with a private key, which registers a task and then signs each request.

Nothing in the token is trusted before its signature was checked against the published keys.
"""

from __future__ import annotations

import binascii
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from execserver.remote.answers import CallFailed, Response
from execserver.remote.auth.agent_key import AgentKey
from execserver.remote.auth.endpoints import AgentEndpoints, own_name
from execserver.remote.auth.kinds import Fields, account_fields
from execserver.remote.auth.sealed_box import CannotOpen, open_sealed
from execserver.remote.auth.tokens import (
    BadToken,
    UnknownKey,
    Untrusted,
    key_set,
    unverified_claims,
    verified_claims,
)
from execserver.remote.errors import SignInError
from execserver.remote.http import ApiClient

if TYPE_CHECKING:
    from execserver.handover.records import PackedSignIn

AUDIENCE = "codex-app-server"
ISSUER = "https://chatgpt.com/codex-backend/agent-identity"
_JWKS_TIMEOUT_S = 10.0
_TASK_TIMEOUT_S = 30.0
_TASK_TRIES = 3
_SHOWN_CHARACTERS = 512

Clock = Callable[[], float]


class _Claims(msgspec.Struct):
    """The claims of the token, all of them required."""

    iss: str
    aud: str | list[str]
    iat: int | float
    exp: int | float
    agent_runtime_id: str
    agent_private_key: str
    account_id: str
    chatgpt_user_id: str
    email: str
    plan_type: str
    chatgpt_account_is_fedramp: bool


class AgentIdentity(NamedTuple):
    """The content of a token whose signature and claims are valid."""

    runtime_id: str
    account_id: str
    is_fedramp: bool
    key: AgentKey


class AgentAuth:
    """Signs each request for the task of an agent, with the time of the request."""

    is_api_key = False
    may_wait = False
    described = "Agent Identity from CODEX_ACCESS_TOKEN"

    def __init__(self, identity: AgentIdentity, task_id: str, token: str, clock: Clock = time.time) -> None:
        self._identity = identity
        self._task_id = task_id
        self._clock = clock
        self._token = token
        self.secrets = (token,)

    def headers(self) -> Fields:
        """Return a fresh assertion and the headers that name the account."""
        identity = self._identity
        assertion = identity.key.assertion(identity.runtime_id, self._task_id, timestamp(self._clock()))
        fields = account_fields(identity.account_id, is_fedramp=identity.is_fedramp)
        return [("authorization", assertion), *fields]

    def pack_sign_in(self) -> PackedSignIn:
        """See `Auth`."""
        from execserver.handover.records import PackedSignIn  # late, as all of that package: few hand over

        return PackedSignIn("agent", [self._token, self._task_id])


def sign_in(token: str, endpoints: AgentEndpoints, client: ApiClient, clock: Clock = time.time) -> AgentAuth:
    """Check the token, register a task and return what signs requests for it.  Raises SignInError."""
    _read_claims(token)  # a malformed token is reported before any request is made
    identity = check(token, _published_keys(endpoints.jwks_url, client), clock())
    task_id = register_task(identity, endpoints.auth_api, client, clock)
    return AgentAuth(identity, task_id, token, clock)


def signed_in(token: str, task_id: str) -> AgentAuth:
    """Return what signs requests for a task, by a token that `sign_in` has checked."""
    return AgentAuth(_content(token), task_id, token)


def check(token: str, keys: dict[str, dict[str, object]], now: float) -> AgentIdentity:
    """Check signature and claims of a token and return its content.  Raises SignInError.

    `keys` is a key set by `kid`, `now` the time in seconds since 1970.
    """
    try:
        verified_claims(token, keys, audience=AUDIENCE, issuer=ISSUER, now=now)
    except UnknownKey as unknown:
        raise SignInError(f"agent identity JWT kid {unknown.kid} is not trusted") from None
    except Untrusted as reason:
        if str(reason) == "no kid":
            raise SignInError("agent identity JWT header does not include a kid") from None
        raise SignInError("failed to verify agent identity JWT", str(reason)) from None
    return _content(token)


def _content(token: str) -> AgentIdentity:
    claims = _read_claims(token)
    key = AgentKey.from_pkcs8(claims.agent_private_key)
    return AgentIdentity(claims.agent_runtime_id, claims.account_id, claims.chatgpt_account_is_fedramp, key)


def register_task(identity: AgentIdentity, auth_api: str, client: ApiClient, clock: Clock) -> str:
    """Register a task for the agent and return its id.  Raises SignInError.

    At most three tries, without pause, as by the reference; only 429, 5xx and network errors are tried again.
    """
    url = f"{auth_api}/v1/agent/{identity.runtime_id}/task/register"
    failure = SignInError("failed to register agent task")
    for _ in range(_TASK_TRIES):
        now = timestamp(clock())
        body = {"timestamp": now, "signature": identity.key.sign(f"{identity.runtime_id}:{now}")}
        try:
            response = client.post(url, own_name(), body, timeout_s=_TASK_TIMEOUT_S)
        except CallFailed as failed:
            failure = SignInError(failure.text, f"{failed.text}: {failed.cause}".removesuffix(": "))
            if not failed.is_transient:
                break
            continue
        if response.is_success:
            return _task_id(response, identity.key)
        shown = response.body.decode("utf-8", "replace").strip()[:_SHOWN_CHARACTERS]
        failure = SignInError(f"agent task registration failed with status {response.status_text}: {shown}")
        if response.status != 429 and response.status < 500:
            break
    raise failure


def timestamp(now: float) -> str:
    """Return a time as `YYYY-MM-DDTHH:MM:SSZ`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))


def _read_claims(token: str) -> _Claims:
    try:
        return msgspec.convert(unverified_claims(token), _Claims)
    except BadToken as bad:
        if bad.reason == "format":
            raise SignInError("invalid agent identity JWT format") from None
        raise SignInError(f"agent identity JWT {bad.reason}") from None
    except msgspec.ValidationError as error:
        raise SignInError("agent identity JWT payload is not valid JSON", str(error)) from None


def _published_keys(url: str, client: ApiClient) -> dict[str, dict[str, object]]:
    try:
        response = client.call("GET", url, own_name(), timeout_s=_JWKS_TIMEOUT_S)
    except CallFailed as failed:
        cause = f"{failed.text}: {failed.cause}".removesuffix(": ")
        raise SignInError("failed to request agent identity JWKS", cause) from None
    if not response.is_success:
        raise SignInError("agent identity JWKS endpoint returned an error", response.status_text)
    try:
        return key_set(response.json())
    except (CallFailed, BadToken) as error:
        raise SignInError("failed to decode agent identity JWKS", str(error)) from None


def _task_id(response: Response, key: AgentKey) -> str:
    try:
        reply = response.json()
    except CallFailed as failed:
        raise SignInError("failed to decode agent task registration response", failed.cause) from None
    for name in ("task_id", "taskId"):
        if isinstance(plain := reply.get(name), str):
            return plain
    for name in ("encrypted_task_id", "encryptedTaskId"):
        if isinstance(sealed := reply.get(name), str):
            return _unsealed(sealed, key)
    raise SignInError("agent task registration response omitted task id")


def _unsealed(sealed: str, key: AgentKey) -> str:
    try:
        box = binascii.a2b_base64(sealed.encode(), strict_mode=True)
    except ValueError:
        raise SignInError("encrypted task id is not valid base64") from None
    try:
        return open_sealed(box, key.curve25519_secret).decode()
    except CannotOpen as reason:
        raise SignInError("failed to decrypt encrypted task id", str(reason)) from None
    except UnicodeDecodeError:
        raise SignInError("decrypted task id is not valid UTF-8") from None
