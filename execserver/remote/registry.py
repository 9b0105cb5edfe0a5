"""The client of the registry's HTTP API: register and validate for executors, connect for harnesses.

Requests, checks and texts are the contract's (remote mode).  Nothing is retried here, and the error texts of
`validate` repeat nothing of the registry's answer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec

from execserver.remote.answers import UNREADABLE, CallFailed, Fields, Response
from execserver.remote.errors import SignInError
from execserver.remote.http import ApiClient, Pending
from execserver.remote.registry_answers import (
    Bundle,
    Registration,
    bundle,
    refusal,
    registration,
    unanswered,
)
from execserver.wire.noise_keys import SECURITY_PROFILE, PublicKeys

REGISTER_TIMEOUT_S = 30.0  # the reference waits for ever
CONNECT_TIMEOUT_S = 10.0
_UNAUTHORIZED = 401


class _Validated(msgspec.Struct):
    valid: bool


_read_validated = msgspec.json.Decoder(_Validated).decode


class Rejected(Exception):
    """The registry did not let a harness in; the text says why, without any secret."""


class AuthenticationRejected(Rejected):
    """The registry answered 401: the harness is told so, since it need not try again."""


class Validation:
    """One question to the registry: may this harness connect?  `close` follows in any case.

    With `at_once` it is sent before anybody waits, if a connection is there.
    """

    __slots__ = ("_begin", "_pending")

    def __init__(self, begin: Callable[[], Pending], *, at_once: bool) -> None:
        self._begin = begin
        self._pending: Pending | None = None
        if at_once:
            with suppress(CallFailed, SignInError):  # `wait` tries once more, and fails alike
                self._pending = begin()

    def when_answered(self, act: Callable[[], None]) -> bool:
        """Have the loop call `act` once something of the answer is there; False if it was not sent yet."""
        return self._pending is not None and self._pending.when_answered(act)

    def is_answered(self) -> bool:
        """Return whether `wait` would not have to wait; does not wait itself."""
        return self._pending is not None and self._pending.is_answered()

    def wait(self) -> None:
        """Return if the registry lets the harness in; whoever waits limits the time.

        Raises AuthenticationRejected for 401, Rejected in every other case.
        """
        try:
            self._pending = self._pending or self._begin()
            response = self._pending.wait()
        except (CallFailed, SignInError) as failed:
            raise Rejected(f"the registry could not be asked: {failed.args[0]}") from None
        if not response.is_success:
            kind = AuthenticationRejected if response.status == _UNAUTHORIZED else Rejected
            raise kind(f"the registry answered {response.status_text}")
        try:
            valid = _read_validated(response.body).valid
        except UNREADABLE:
            raise Rejected("the registry's answer is not readable") from None
        if not valid:
            raise Rejected("the registry says that its authorization is not valid")

    def close(self) -> None:
        """End it, after `wait` or instead; the connection stays for other questions if it can."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.close()


class RegistryClient:
    """One environment at one registry.

    `auth_headers` is called for every request and returns the headers that sign it, in their order; say if it
    never waits.  Without `shows_bodies` errors say nothing of what the registry answered but its status.
    """

    def __init__(
        self,
        base_url: str,
        environment_id: str,
        auth_headers: Callable[[], Fields],
        client: ApiClient,
        *,
        headers_may_wait: bool = True,
        shows_bodies: bool = True,
    ) -> None:
        self._shows_bodies = shows_bodies
        self._headers_may_wait = headers_may_wait
        self._root = f"{base_url}/cloud/environment/{environment_id}"
        self._environment_id = environment_id
        self._auth_headers = auth_headers
        self._client = client

    def register(self, key: PublicKeys) -> Registration:
        """Register an executor's key.  Raises RegistryError, SignInError, TakenOver or NotNow."""
        body = {"security_profile": SECURITY_PROFILE, "executor_public_key": key.to_json()}
        return registration(self._post("register", body, REGISTER_TIMEOUT_S), self._environment_id)

    def connect(self, key: PublicKeys) -> Bundle:
        """Ask for a connection to the executor.  Raises RegistryError or SignInError."""
        body = {"harness_public_key": key.to_json()}
        return bundle(self._post("connect", body, CONNECT_TIMEOUT_S), self._environment_id)

    def ask(
        self, registration_id: str, harness: PublicKeys, authorization: str, stream_id: str
    ) -> Validation:
        """Begin to ask whether a harness may connect; does not wait."""
        body = {
            "executor_registration_id": registration_id,
            "harness_public_key": harness.to_json(),
            "harness_key_authorization": authorization,
        }
        url = f"{self._root}/validate"

        def begin() -> Pending:
            fields = [*self._auth_headers(), ("x-codex-noise-stream-id", _header_value(stream_id))]
            return self._client.begin_post(url, fields, body, timeout_s=None)

        return Validation(begin, at_once=not self._headers_may_wait)

    def _post(self, call: str, body: object, timeout_s: float) -> Response:
        try:
            response = self._client.post(
                f"{self._root}/{call}", self._auth_headers(), body, timeout_s=timeout_s
            )
        except CallFailed as failed:
            raise unanswered(failed) from None
        if not response.is_success:
            raise refusal(response, shows_body=self._shows_bodies)
        return response


def _header_value(stream_id: str) -> str:
    # The harness chooses the id, so it may be no valid header value.
    return stream_id if stream_id.isascii() and stream_id.isprintable() and len(stream_id) <= 128 else "-"
