"""Personal access tokens (`at-...`): their owner is asked for before they are used."""

from __future__ import annotations

import msgspec

from execserver.remote.answers import CallFailed
from execserver.remote.auth.endpoints import Endpoints, own_name
from execserver.remote.auth.kinds import BearerAuth
from execserver.remote.errors import SignInError
from execserver.remote.http import ApiClient

PREFIX = "at-"
_TIMEOUT_S = 10.0


class _Owner(msgspec.Struct):
    """The reply, as far as it is used; its other members describe the user."""

    chatgpt_account_id: str
    chatgpt_account_is_fedramp: bool = False


def sign_in(token: str, source: str, endpoints: Endpoints, client: ApiClient) -> BearerAuth:
    """Ask for the owner of a token and return what signs in with it.  Raises SignInError."""
    url = f"{endpoints.auth_api}/v1/user-auth-credential/whoami"
    fields = [("authorization", f"Bearer {token}"), *own_name()]
    try:
        response = client.call("GET", url, fields, timeout_s=_TIMEOUT_S)
    except CallFailed as failed:
        cause = f"{failed.text}: {failed.cause}".removesuffix(": ")
        raise SignInError(f"failed to request personal access token metadata: {cause}") from None
    if not response.is_success:
        text = f"personal access token metadata request failed with status {response.status_text}"
        raise SignInError(text)
    try:
        owner = msgspec.json.decode(response.body, type=_Owner)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SignInError(f"failed to decode personal access token metadata: {error}") from None
    return BearerAuth(
        token,
        owner.chatgpt_account_id,
        is_fedramp=owner.chatgpt_account_is_fedramp,
        described=f"personal access token from {source}",
    )
