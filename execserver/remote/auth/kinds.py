"""The interface of all kinds of sign-in, and the two simplest kinds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from execserver.handover.records import PackedSignIn

# Made by `execserver relay token create`.  The host rule protects keys of vendors, none of which looks so.
_RELAY_TOKEN = re.compile(r"esr-[0-9a-f]{12}-[A-Za-z0-9_-]{43}")

Fields = list[tuple[str, str]]


class Auth(Protocol):
    """One kind of sign-in with the registry."""

    @property
    def is_api_key(self) -> bool:
        """True for API keys, which may only be sent to certain hosts."""

    @property
    def may_wait(self) -> bool:
        """True if `headers` may have to ask somebody first."""

    @property
    def described(self) -> str:
        """What the log says: the kind and where it was found, never the secret."""

    @property
    def secrets(self) -> Iterable[str]:
        """The texts that must not appear in a log."""

    def headers(self) -> Fields:
        """Return the headers of the next request, in order.  Raises SignInError."""

    def pack_sign_in(self) -> PackedSignIn | None:
        """Return what `handed_over.unpacked` takes; None for what reads stdin, which packs itself."""


class ApiKeyAuth:
    """An API key, or in its place the token of a self-hosted relay, which may be sent to any host."""

    may_wait = False

    def __init__(self, key: str, source: str) -> None:
        self._key = key
        self._source = source
        self.is_api_key = _RELAY_TOKEN.fullmatch(key) is None
        self.described = f"{'API key' if self.is_api_key else 'token of a relay'} from {source}"
        self.secrets = (key,)

    def headers(self) -> Fields:
        """Return the `authorization` header."""
        return [("authorization", f"Bearer {self._key}")]

    def pack_sign_in(self) -> PackedSignIn:
        """See `Auth`."""
        from execserver.handover.records import PackedSignIn  # late, as all of that package: few hand over

        return PackedSignIn("api-key", [self._key, self._source])


class BearerAuth:
    """A token of an account that is never refreshed."""

    is_api_key = False
    may_wait = False

    def __init__(self, token: str, account_id: str, *, is_fedramp: bool, described: str) -> None:
        self._token = token
        self._account_id = account_id
        self._is_fedramp = is_fedramp
        self.described = described
        self.secrets = (token,)

    def headers(self) -> Fields:
        """Return `authorization` and the headers that name the account."""
        fields = [("authorization", f"Bearer {self._token}")] if self._token else []
        return fields + account_fields(self._account_id, is_fedramp=self._is_fedramp)

    def pack_sign_in(self) -> PackedSignIn:
        """See `Auth`."""
        from execserver.handover.records import PackedSignIn

        fedramp = "yes" if self._is_fedramp else "no"
        return PackedSignIn("bearer", [self._token, self._account_id, fedramp, self.described])


def account_fields(account_id: str, *, is_fedramp: bool) -> Fields:
    """Return the headers that name the account."""
    fields = [("chatgpt-account-id", account_id)] if account_id else []
    return [*fields, ("x-openai-fedramp", "true")] if is_fedramp else fields
