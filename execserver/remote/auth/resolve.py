"""The choice of the sign-in (remote mode): the first source that has a credential."""

from __future__ import annotations

from collections.abc import Mapping

from execserver.remote.auth import personal_token
from execserver.remote.auth.auth_file import AuthFile, Document, UnreadableAuthFile
from execserver.remote.auth.endpoints import CHATGPT_BASE_URL, AgentEndpoints, Endpoints
from execserver.remote.auth.kinds import ApiKeyAuth, Auth, BearerAuth
from execserver.remote.auth.tokens import BadToken, unverified_claims
from execserver.remote.errors import SignInError
from execserver.remote.http import ApiClient

CREDENTIALS = ("CODEX_API_KEY", "CODEX_ACCESS_TOKEN")
"""The variables that hold any."""

NOTHING_USABLE = (
    "remote exec-server registration requires ChatGPT authentication or API key authentication; "
    "run `codex login` or set CODEX_API_KEY"
)
NEEDS_FLAG = (
    "remote exec-server registration requires ChatGPT authentication or API key authentication; "
    "Agent Identity auth requires --use-agent-identity-auth"
)
TOKEN_REQUIRED = "CODEX_ACCESS_TOKEN is required when --use-agent-identity-auth is set"
IN_KEYRING = (
    "the credentials are in the system's keyring, which execserver does not read; "
    'set cli_auth_credentials_store = "file" and run `codex login`, or set CODEX_API_KEY'
)


def resolve_auth(
    environ: Mapping[str, str],
    codex_home: str,
    config: Mapping[str, object],
    use_agent_identity: bool,
    *,
    client: ApiClient | None = None,
    endpoints: Endpoints | None = None,
    agent_endpoints: AgentEndpoints | None = None,
) -> Auth:
    """Return what signs the registry requests.  Raises SignInError.

    `config` is the content of `config.toml`.  The addresses are those of `environ` and `config` unless given.
    """
    client = client or ApiClient(environ)
    endpoints = endpoints or Endpoints.from_environment(environ)
    token = environ.get("CODEX_ACCESS_TOKEN", "").strip()
    if use_agent_identity:
        if not token:
            raise SignInError(TOKEN_REQUIRED)
        from execserver.remote.auth import agent_identity  # late: its keys take a while to load

        base = config.get("chatgpt_base_url", CHATGPT_BASE_URL)
        addresses = agent_endpoints or AgentEndpoints.for_chatgpt(str(base))
        return agent_identity.sign_in(token, addresses, client)
    if key := environ.get("CODEX_API_KEY", "").strip():
        return ApiKeyAuth(key, "CODEX_API_KEY")
    if token:
        return _from_access_token(token, endpoints, client)
    return _from_file(AuthFile(codex_home), config, endpoints, client)


def _from_access_token(token: str, endpoints: Endpoints, client: ApiClient) -> Auth:
    if token.startswith(personal_token.PREFIX):
        try:
            return personal_token.sign_in(token, "CODEX_ACCESS_TOKEN", endpoints, client)
        except SignInError as error:
            # The contract's text says that there is no credential; only the cause shows the mistake.
            raise SignInError(NOTHING_USABLE, error.text) from None
    try:
        is_agent = "agent_runtime_id" in unverified_claims(token)
    except BadToken:
        is_agent = False
    if is_agent:
        raise SignInError(NEEDS_FLAG)
    raise SignInError(NOTHING_USABLE, "CODEX_ACCESS_TOKEN holds no token of a known kind")


def _from_file(file: AuthFile, config: Mapping[str, object], endpoints: Endpoints, client: ApiClient) -> Auth:
    try:
        document = file.read()
    except UnreadableAuthFile as error:
        raise SignInError(NOTHING_USABLE, str(error)) from None
    if document is None:
        in_keyring = config.get("cli_auth_credentials_store") in ("keyring", "auto")
        raise SignInError(NOTHING_USABLE, IN_KEYRING if in_keyring else "")
    mode = _mode(document)
    if mode == "apikey" and (key := _text(document, "OPENAI_API_KEY").strip()):
        return ApiKeyAuth(key, file.path)
    if mode in ("chatgpt", "chatgptAuthTokens") and isinstance(document.get("tokens"), dict):
        from execserver.remote.auth.chatgpt import (
            ChatGptAuth,
        )  # late: it has locks and dates

        return ChatGptAuth(file, document, client, endpoints, refreshes=mode == "chatgpt")
    if mode == "personalAccessToken" and (token := _text(document, "personal_access_token").strip()):
        return _from_stored_token(token, file.path, endpoints, client)
    if mode == "agentIdentity":
        raise SignInError(NEEDS_FLAG)
    raise SignInError(NOTHING_USABLE)


def _from_stored_token(token: str, path: str, endpoints: Endpoints, client: ApiClient) -> BearerAuth:
    try:
        return personal_token.sign_in(token, path, endpoints, client)
    except SignInError as error:
        raise SignInError(NOTHING_USABLE, error.text) from None


def _mode(document: Document) -> str:
    """Return the mode that a document names, or the one that its members imply."""
    if isinstance(mode := document.get("auth_mode"), str):
        return mode
    if document.get("personal_access_token") is not None:
        return "personalAccessToken"
    if document.get("bedrock_api_key") is not None:
        return "bedrockApiKey"
    return "apikey" if document.get("OPENAI_API_KEY") is not None else "chatgpt"


def _text(document: Document, name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""
