"""The configuration of remote mode, and what it reads of the codex CLI's configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from execserver.remote.errors import ConfigurationError

DEFAULT_NAME = "codex-exec-server"
_USED = ("chatgpt_base_url", "cli_auth_credentials_store")


class RemoteEnvironmentConfig(NamedTuple):
    """How to register as an environment.

    `name` appears in the log and is sent nowhere.  `config_overrides` are `key=value` texts that take
    precedence over `config.toml`.  `stdin_credential` is the kind that stdin gives, of those in
    `auth.stdin_credentials`; `api_key_host` may get API keys besides the vendor's hosts.
    """

    base_url: str
    environment_id: str
    name: str = DEFAULT_NAME
    use_agent_identity_auth: bool = False
    config_overrides: Sequence[str] = ()
    stdin_credential: str | None = None
    chatgpt_account_id: str | None = None
    api_key_host: str | None = None


class RemoteExecutorConfig(NamedTuple):
    """How to register as an executor by the contract of May 2026: no relay, no encryption of its own."""

    base_url: str
    executor_id: str
    name: str = DEFAULT_NAME


def find_codex_home(environ: Mapping[str, str]) -> str:
    """Return the home folder of the codex CLI.  Raises ConfigurationError if it is named but missing."""
    named = environ.get("CODEX_HOME", "")
    if not named:
        return os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".codex")
    if not os.path.exists(named):
        raise ConfigurationError(f'CODEX_HOME points to "{named}", but that path does not exist')
    return os.path.realpath(named)


def read_config(codex_home: str, overrides: Sequence[str]) -> dict[str, object]:
    """Return the members of `config.toml` that sign-in uses.  Raises ConfigurationError if it is broken."""
    path = os.path.join(codex_home, "config.toml")
    try:
        with open(path, "rb") as file:
            content = _parsed(path, file.read())
    except FileNotFoundError:
        content = {}
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    found = {name: content[name] for name in _USED if name in content}
    for override in overrides:
        name, equals, value = override.partition("=")
        if equals and name.strip() in _USED:
            found[name.strip()] = _value(value.strip())
    return found


def _parsed(path: str, data: bytes) -> dict[str, Any]:
    import tomllib  # late: there may be no file, and the registry has not been asked yet

    try:
        return tomllib.loads(data.decode())
    except ValueError as error:  # not TOML, or no UTF-8
        raise ConfigurationError(f"{path}: {error}") from None


def _value(text: str) -> object:
    """Return the value of an override: parsed if it is valid TOML, else the text itself."""
    import tomllib  # late: see above

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
