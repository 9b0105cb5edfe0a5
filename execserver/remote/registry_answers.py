"""The registry's answers: what they must hold, and what errors they become.  No I/O.

Checks and texts are the contract's (remote mode).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import msgspec

from execserver.remote.answers import UNREADABLE, CallFailed, Response
from execserver.remote.errors import RegistryError, SignInError
from execserver.wire.noise_keys import SECURITY_PROFILE, InvalidKeyObject, PublicKeys

MAX_SHOWN_CHARACTERS = 4096
_REQUEST_FAILED = "environment registry request failed"
_INCOMPLETE = "exec-server protocol error: environment registry returned incomplete Noise connection data"
_TAKEN_OVER = "another executor has taken over this environment"
_NOT_FOUND = 404
_CONFLICT = 409
_TOO_MANY_REQUESTS = 429
_TRANSIENT = frozenset((408, _TOO_MANY_REQUESTS))
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


_ReplyT = TypeVar("_ReplyT", bound=msgspec.Struct)


class TakenOver(RegistryError):
    """A newer executor serves the environment; to register again would only evict it in turn."""


class NotNow(RegistryError):
    """The registry cannot register anybody just now: 429 or 5xx.  A later try may succeed."""


def bundle(response: Response, environment_id: str) -> Bundle:
    """Return what a good answer to `connect` holds.  Raises RegistryError."""
    reply = _decoded(response, _Connected)
    _check(reply, environment_id, reply.harness_key_authorization)
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


def registration(response: Response, environment_id: str) -> Registration:
    """Return what a good answer to `register` holds.  Raises RegistryError."""
    reply = _decoded(response, _Registered)
    _check(reply, environment_id)
    return Registration(reply.environment_id, reply.url, reply.executor_registration_id)


def unanswered(failed: CallFailed) -> RegistryError:
    """Return the error for a call without an answer."""
    error = RegistryError(f"{_REQUEST_FAILED}: {failed.text}", failed.cause)
    error.is_transient = failed.is_transient
    return error


def refusal(
    response: Response, kind: str = "environment", *, shows_body: bool = True
) -> RegistryError | SignInError:
    """Return the error for an answer whose status is not 2xx."""
    error = _refusal(response, kind) if shows_body else _refusal_without_body(response)
    error.is_transient = response.status >= _SERVER_ERRORS or response.status in _TRANSIENT
    error.is_unknown = response.status == _NOT_FOUND
    return error


def _refusal(response: Response, kind: str) -> RegistryError | SignInError:
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


def _decoded(response: Response, kind: type[_ReplyT]) -> _ReplyT:
    try:
        return msgspec.json.decode(response.body, type=kind)
    except UNREADABLE as error:
        raise RegistryError(f"{_REQUEST_FAILED}: error decoding response body", str(error)) from None


def _check(reply: _Registered, environment_id: str, *further: str) -> None:
    """Raise RegistryError if the answer is about something else, or if a text in it is blank."""
    if reply.environment_id != environment_id:
        text = "exec-server protocol error: environment registry returned a different environment id"
        raise RegistryError(text)
    if reply.security_profile != SECURITY_PROFILE:
        raise RegistryError(
            "exec-server protocol error: environment registry returned unsupported security profile "
            f"`{reply.security_profile}`"
        )
    if not all(part.strip() for part in (reply.url, reply.executor_registration_id, *further)):
        raise RegistryError(_INCOMPLETE)
