"""The addresses of sign-in, and which ChatGPT environment (production, staging) they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from execserver.remote.errors import SignInError
from execserver.version import __version__

CHATGPT_BASE_URL = "https://chatgpt.com/backend-api"
_PRODUCTION = ("https://chatgpt.com", "https://chat.openai.com")
_STAGING = ("https://chatgpt-staging.com",)
_SUFFIXES = ("", "/backend-api", "/codex", "/backend-api/codex")
_AUTH_API = "https://auth.openai.com/api/accounts"
_STAGING_AUTH_API = "https://auth.api.openai.org/api/accounts"
_TOKEN_URL = "https://auth.openai.com/oauth/token"
_CLIENT_ID = "app_EMoamEEZ73f0CkXaXp7hrann"


class Endpoints(NamedTuple):
    """Base URLs without a slash at the end, and the client id of token refreshes."""

    auth_api: str = _AUTH_API
    token_url: str = _TOKEN_URL
    client_id: str = _CLIENT_ID

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Endpoints:
        """Return the public addresses, or those that the reference's variables name instead."""
        return cls(
            (environ.get("CODEX_AUTHAPI_BASE_URL") or _AUTH_API).rstrip("/"),
            environ.get("CODEX_REFRESH_TOKEN_URL_OVERRIDE") or _TOKEN_URL,
            environ.get("CODEX_APP_SERVER_LOGIN_CLIENT_ID") or _CLIENT_ID,
        )


class AgentEndpoints(NamedTuple):
    """Where an Agent Identity is checked and registered."""

    jwks_url: str
    auth_api: str

    @classmethod
    def for_chatgpt(cls, base_url: str) -> AgentEndpoints:
        """Return the addresses that belong to `chatgpt_base_url`.  Raises SignInError for an unknown one."""
        base = base_url.strip().rstrip("/")
        if base in _known(_PRODUCTION):
            auth_api = _AUTH_API
        elif base in _known(_STAGING):
            auth_api = _STAGING_AUTH_API
        else:
            raise SignInError("Agent Identity only supports production and staging ChatGPT environments")
        return cls(jwks_url(base), auth_api)


def jwks_url(base: str) -> str:
    """Return the URL of the published keys of agent identities, below a ChatGPT base URL."""
    return f"{base}/wham/agent-identities/jwks" if "/backend-api" in base else f"{base}/agent-identities/jwks"


def own_name() -> list[tuple[str, str]]:
    """Return the headers that name the caller in sign-in requests; the registry gets none."""
    return [("originator", "codex_cli_rs"), ("user-agent", f"codex_cli_rs/{__version__} (execserver)")]


def _known(hosts: tuple[str, ...]) -> set[str]:
    return {host + suffix for host in hosts for suffix in _SUFFIXES}
