"""The client of the registry's HTTP API: register and validate for executors, connect for harnesses.

Requests, checks and texts are the contract's (remote mode).  Nothing is retried here, and the error texts of
`validate` repeat nothing of the registry's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from execserver.remote.errors import RegistryError, SignInError
from execserver.remote.http import UNREADABLE, ApiClient, CallFailed, Fields, Response
from execserver.wire.noise_keys import SECURITY_PROFILE, InvalidKeyObject, PublicKeys

REGISTER_TIMEOUT_S = 30.0  # the reference waits for ever
VALIDATE_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 10.0
MAX_SHOWN_CHARACTERS = 4096
_REQUEST_FAILED = "environment registry request failed"
_INCOMPLETE = "exec-server protocol error: environment registry returned incomplete Noise connection data"
_TAKEN_OVER = "another executor has taken over this environment"
_UNAUTHORIZED = 401
_CONFLICT = 409
_TOO_MANY_REQUESTS = 429
_SERVER_ERRORS = 500  # and above


class Registration(NamedTuple):
    """What an executor gets: where to connect, and the ids that its handshakes include."""

    environment_id: str
    url: str
    registration_id: str


class Bundle(NamedTuple):
    """What a harness gets for one connection attempt."""

    environment_id: str
    url: str
    registration_id: str
    executor_key: PublicKeys
    authorization: str


class _Registered(msgspec.Struct):
    environment_id: str
    url: str
    security_profile: str
    executor_registration_id: str


class _Connected(_Registered):
    executor_public_key: dict[str, object]
    harness_key_authorization: str


class _Validated(msgspec.Struct):
    valid: bool


_ReplyT = TypeVar("_ReplyT", bound=msgspec.Struct)


class TakenOver(RegistryError):
    """A newer executor serves the environment; to register again would only evict it in turn."""


class NotNow(RegistryError):
    """The registry cannot register anybody just now: 429 or 5xx.  A later try may succeed."""


class Rejected(Exception):
    """The registry did not let a harness in; the text says why, without any secret."""


class AuthenticationRejected(Rejected):
    """The registry answered 401: the harness is told so, since it need not try again."""


class RegistryClient:
    """One environment at one registry.

    `auth_headers` is called for every request and returns the headers that sign it, in their order.  Without
    `shows_bodies` errors say nothing of what the registry answered but its status.
    """

    def __init__(
        self,
        base_url: str,
        environment_id: str,
        auth_headers: Callable[[], Fields],
        client: ApiClient,
        shows_bodies: bool = True,
    ) -> None:
        self._shows_bodies = shows_bodies
        self._root = f"{base_url}/cloud/environment/{environment_id}"
        self._environment_id = environment_id
        self._auth_headers = auth_headers
        self._client = client

    def register(self, key: PublicKeys) -> Registration:
        """Register an executor's key.  Raises RegistryError, SignInError, TakenOver or NotNow."""
        body = {"security_profile": SECURITY_PROFILE, "executor_public_key": key.to_json()}
        reply = self._decoded(self._post("register", body, REGISTER_TIMEOUT_S), _Registered)
        self._check(reply)
        if not reply.url.strip() or not reply.executor_registration_id.strip():
            raise RegistryError(_INCOMPLETE)
        return Registration(reply.environment_id, reply.url, reply.executor_registration_id)

    def connect(self, key: PublicKeys) -> Bundle:
        """Ask for a connection to the executor.  Raises RegistryError or SignInError."""
        body = {"harness_public_key": key.to_json()}
        reply = self._decoded(self._post("connect", body, CONNECT_TIMEOUT_S), _Connected)
        self._check(reply)
        parts = (reply.url, reply.executor_registration_id, reply.harness_key_authorization)
        if not all(part.strip() for part in parts):
            text = (
                "exec-server protocol error: environment registry returned incomplete Noise connection data"
            )
            raise RegistryError(text)
        try:
            executor_key = PublicKeys.from_json(reply.executor_public_key)
        except InvalidKeyObject as error:
            raise RegistryError(_REQUEST_FAILED, f"executor_public_key: {error}") from None
        return Bundle(
            reply.environment_id,
            reply.url,
            reply.executor_registration_id,
            executor_key,
            reply.harness_key_authorization,
        )

    def validate(self, registration_id: str, harness: PublicKeys, authorization: str, stream_id: str) -> None:
        """Return if the registry lets a harness in.

        Raises AuthenticationRejected for 401, Rejected in every other case.
        """
        body = {
            "executor_registration_id": registration_id,
            "harness_public_key": harness.to_json(),
            "harness_key_authorization": authorization,
        }
        try:
            fields = [*self._auth_headers(), ("x-codex-noise-stream-id", _header_value(stream_id))]
            response = self._client.post(f"{self._root}/validate", fields, body, timeout_s=VALIDATE_TIMEOUT_S)
        except (CallFailed, SignInError) as failed:
            raise Rejected(f"the registry could not be asked: {failed.args[0]}") from None
        if not response.is_success:
            kind = AuthenticationRejected if response.status == _UNAUTHORIZED else Rejected
            raise kind(f"the registry answered {response.status_text}")
        try:
            valid = msgspec.json.decode(response.body, type=_Validated).valid
        except UNREADABLE:
            raise Rejected("the registry's answer is not readable") from None
        if not valid:
            raise Rejected("the registry says that its authorization is not valid")

    def _post(self, call: str, body: object, timeout_s: float) -> Response:
        try:
            response = self._client.post(
                f"{self._root}/{call}", self._auth_headers(), body, timeout_s=timeout_s
            )
        except CallFailed as failed:
            raise RegistryError(f"{_REQUEST_FAILED}: {failed.text}", failed.cause) from None
        if not response.is_success:
            raise refusal(response, shows_body=self._shows_bodies)
        return response

    def _decoded(self, response: Response, kind: type[_ReplyT]) -> _ReplyT:
        try:
            return msgspec.json.decode(response.body, type=kind)
        except UNREADABLE as error:
            raise RegistryError(f"{_REQUEST_FAILED}: error decoding response body", str(error)) from None

    def _check(self, reply: _Registered) -> None:
        if reply.environment_id != self._environment_id:
            text = "exec-server protocol error: environment registry returned a different environment id"
            raise RegistryError(text)
        if reply.security_profile != SECURITY_PROFILE:
            raise RegistryError(
                "exec-server protocol error: environment registry returned unsupported security profile "
                f"`{reply.security_profile}`"
            )


def refusal(
    response: Response, kind: str = "environment", *, shows_body: bool = True
) -> RegistryError | SignInError:
    """Return the error for an answer whose status is not 2xx."""
    if not shows_body:
        return _refusal_without_body(response)
    code, message = _error_members(response.body)
    text = response.body.decode("utf-8", "replace").strip()[:MAX_SHOWN_CHARACTERS]
    if response.status in (401, 403):
        told = message if message is not None else text or "empty error body"
        return SignInError(
            f"{kind} registry authentication error: {kind} registry authentication failed "
            f"({response.status_text}): {told}"
        )
    told = message if message is not None else text or "empty or malformed error body"
    if response.status == _CONFLICT:
        return TakenOver(message or _TAKEN_OVER)
    shown = f"{response.status_text}, {code}" if code is not None else response.status_text
    return _failure(response.status)(f"{kind} registry request failed ({shown}): {told}")


def _refusal_without_body(response: Response) -> RegistryError | SignInError:
    if response.status in (401, 403):
        return SignInError(
            "environment registry authentication error: environment registry authentication failed "
            f"({response.status_text}): response body omitted"
        )
    return _failure(response.status)(
        f"environment registry request failed ({response.status_text}): "
        "environment registry executor registration failed"
    )


def _failure(status: int) -> type[RegistryError]:
    return NotNow if status == _TOO_MANY_REQUESTS or status >= _SERVER_ERRORS else RegistryError


def _error_members(body: bytes) -> tuple[str | None, str | None]:
    """Return `code` and `message` of an error body, None for what is missing."""
    try:
        error = msgspec.json.decode(body, type=Mapping[str, object]).get("error")
    except UNREADABLE:
        return None, None
    if not isinstance(error, Mapping):
        return None, None
    code, message = error.get("code"), error.get("message")
    return (
        code if isinstance(code, str) else None,
        message[:MAX_SHOWN_CHARACTERS] if isinstance(message, str) else None,
    )


def _header_value(stream_id: str) -> str:
    # The harness chooses the id, so it may be no valid header value.
    return stream_id if stream_id.isascii() and stream_id.isprintable() and len(stream_id) <= 128 else "-"
