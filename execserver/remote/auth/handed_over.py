"""A sign-in that a program before this one has made: what it has checked and asked for counts on."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from execserver.handover.records import PackedSignIn
from execserver.remote.auth.kinds import ApiKeyAuth, Auth, BearerAuth
from execserver.remote.http import ApiClient


def unpacked(packed: PackedSignIn, environ: Mapping[str, str]) -> Auth:
    """Return what `Auth.pack_sign_in` has packed; nobody is asked.  Raises SignInError.

    The addresses for further requests are those of `environ`.
    """
    if packed.kind == "api-key":
        key, source = packed.texts
        return ApiKeyAuth(key, source)
    if packed.kind == "bearer":
        token, account_id, fedramp, described = packed.texts
        return BearerAuth(token, account_id, is_fedramp=fedramp == "yes", described=described)
    if packed.kind == "agent":
        from execserver.remote.auth.agent_identity import signed_in  # late: its keys take a while to load

        return signed_in(*packed.texts)
    return _chatgpt(environ, *packed.texts)


def _chatgpt(environ: Mapping[str, str], folder: str, document: str, refreshes: str) -> Auth:
    from execserver.remote.auth.auth_file import AuthFile
    from execserver.remote.auth.chatgpt import ChatGptAuth
    from execserver.remote.auth.endpoints import Endpoints

    return ChatGptAuth(
        AuthFile(folder),
        msgspec.json.decode(document, type=dict[str, object]),
        ApiClient(environ),
        Endpoints.from_environment(environ),
        refreshes=refreshes == "yes",
    )
