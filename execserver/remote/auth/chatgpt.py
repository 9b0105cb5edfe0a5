"""Sign-in state of ChatGPT in `auth.json`, refreshed before it expires.

The reference refreshes at the start only and keeps the token it got.  A registration that lives for weeks
needs more, so the state is checked before every request.  Another program may have refreshed meanwhile: the
file is read again first.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec
from gevent.lock import RLock

from execserver.remote.answers import CallFailed
from execserver.remote.auth.auth_file import AuthFile, Document, UnreadableAuthFile
from execserver.remote.auth.endpoints import Endpoints, own_name
from execserver.remote.auth.kinds import Fields, account_fields
from execserver.remote.auth.tokens import BadToken, unverified_claims
from execserver.remote.http import ApiClient

if TYPE_CHECKING:
    from execserver.handover.records import PackedSignIn

_log = logging.getLogger(__name__)

EXPIRES_SOON_S = 5 * 60
STALE_AFTER_S = 8 * 86_400
_RETRY_S = 30.0  # after a refresh that failed
_REFRESH_TIMEOUT_S = 30.0
_CLAIM_OBJECT = "https://api.openai.com/auth"
_TOKEN_NAMES = ("id_token", "access_token", "refresh_token")


class ChatGptAuth:
    """The tokens of one signed-in user."""

    is_api_key = False
    may_wait = True  # while the tokens are refreshed

    def __init__(
        self,
        file: AuthFile,
        document: Document,
        client: ApiClient,
        endpoints: Endpoints,
        *,
        refreshes: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = file
        self._document = document
        self._client = client
        self._endpoints = endpoints
        self._refreshes = refreshes
        self._clock = clock
        self._not_before = 0.0
        self._refreshing = RLock()
        self.described = f"ChatGPT sign-in from {file.path}"

    @property
    def secrets(self) -> Iterable[str]:
        """The tokens."""
        return [value for name, value in _tokens(self._document).items() if name in _TOKEN_NAMES]

    def headers(self) -> Fields:
        """Return the headers, with a token that is refreshed if necessary."""
        # One refresh at a time: validations run in parallel.
        with self._refreshing:
            if self._refreshes and self._is_stale():
                self._renew()
        tokens = _tokens(self._document)
        fields: Fields = []
        if "access_token" in tokens and self._document.get("last_refresh") is not None:
            fields = [("authorization", f"Bearer {tokens['access_token']}")]
        is_fedramp = _is_fedramp(tokens.get("id_token", ""))
        return fields + account_fields(tokens.get("account_id", ""), is_fedramp=is_fedramp)

    def pack_sign_in(self) -> PackedSignIn:
        """See `Auth`."""
        from execserver.handover.records import PackedSignIn  # late, as all of that package: few hand over

        document = msgspec.json.encode(self._document).decode()
        return PackedSignIn("chatgpt", [self._file.folder, document, "yes" if self._refreshes else "no"])

    def _is_stale(self) -> bool:
        now = self._clock()
        tokens = _tokens(self._document)
        if now < self._not_before or not tokens.get("refresh_token"):
            return False
        expires = _expiry(tokens.get("access_token", ""))
        if expires is not None:
            return expires - now <= EXPIRES_SOON_S
        refreshed = _seconds(self._document.get("last_refresh"))
        return refreshed is not None and now - refreshed > STALE_AFTER_S

    def _renew(self) -> None:
        self._reload()
        if not self._is_stale():
            return
        try:
            fresh = self._ask(_tokens(self._document)["refresh_token"])
        except CallFailed as failed:
            self._not_before = self._clock() + _RETRY_S
            _log.error("the ChatGPT tokens could not be refreshed, the old ones are used: %s", failed.text)
            return
        last_refresh = datetime.datetime.fromtimestamp(self._clock(), datetime.UTC)
        stamp = last_refresh.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self._document = {
            **self._document,
            "tokens": {**_tokens(self._document), **fresh},
            "last_refresh": stamp,
        }
        try:
            self._file.write_tokens(fresh, stamp)
        except OSError as error:
            _log.error("the refreshed ChatGPT tokens could not be stored in %s: %s", self._file.path, error)

    def _reload(self) -> None:
        # Only for the same account: another user's sign-in must not change whose executor this is.
        try:
            document = self._file.read()
        except UnreadableAuthFile:
            return
        account = _tokens(self._document).get("account_id")
        if document is not None and _tokens(document).get("account_id") == account:
            self._document = document

    def _ask(self, refresh_token: str) -> dict[str, str]:
        """Return the new tokens.  Raises CallFailed, whose text repeats none of them."""
        body = {
            "client_id": self._endpoints.client_id,
            "grant_type": "refresh_token",
            "refresh_token": refresh_token,
        }
        response = self._client.post(
            self._endpoints.token_url, own_name(), body, timeout_s=_REFRESH_TIMEOUT_S
        )
        if not response.is_success:
            cure = "; run `codex login` again" if response.status in (400, 401, 403) else ""
            raise CallFailed(f"{response.status_text}{cure}")
        reply = response.json()
        return {name: str(reply[name]) for name in _TOKEN_NAMES if isinstance(reply.get(name), str)}


def _tokens(document: Document) -> dict[str, str]:
    tokens = document.get("tokens")
    if not isinstance(tokens, dict):
        return {}
    return {name: value for name, value in tokens.items() if isinstance(value, str)}


def _expiry(token: str) -> float | None:
    try:
        expires = unverified_claims(token).get("exp")
    except BadToken:
        return None
    return expires if isinstance(expires, int | float) and not isinstance(expires, bool) else None


def _is_fedramp(id_token: str) -> bool:
    # Decoded without a check, as by the reference: it chooses a header and gives no right.
    try:
        claims = unverified_claims(id_token).get(_CLAIM_OBJECT)
    except BadToken:
        return False
    return isinstance(claims, dict) and claims.get("chatgpt_account_is_fedramp") is True


def _seconds(stamp: object) -> float | None:
    try:
        return datetime.datetime.fromisoformat(str(stamp)).timestamp()
    except ValueError:
        return None
