"""Remote mode by environment variables: registry, environment and token, all three or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from execserver.client.errors import RemoteConfigurationError
from execserver.client.options import ExecServerClientConnectOptions, RemoteExecServerConnectArgs

REGISTRY_URL_VARIABLE: Final = "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL"
ENVIRONMENT_ID_VARIABLE: Final = "CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID"
AUTH_TOKEN_VARIABLE: Final = "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN"
ACCOUNT_ID_VARIABLE: Final = "CODEX_EXEC_SERVER_NOISE_CHATGPT_ACCOUNT_ID"

_INCOMPLETE: Final = (
    "environment registry configuration error: Noise environment requires "
    f"{REGISTRY_URL_VARIABLE}, {ENVIRONMENT_ID_VARIABLE}, and {AUTH_TOKEN_VARIABLE}"
)


def remote_args(
    environ: Mapping[str, str], options: ExecServerClientConnectOptions
) -> RemoteExecServerConnectArgs | None:
    """Return the arguments from the variables, None if none of the three is set; blank counts as not set.

    Raises `RemoteConfigurationError` if only some are set.
    """
    url, environment_id, token, account_id = (
        environ.get(name, "").strip()
        for name in (REGISTRY_URL_VARIABLE, ENVIRONMENT_ID_VARIABLE, AUTH_TOKEN_VARIABLE, ACCOUNT_ID_VARIABLE)
    )
    if not (url or environment_id or token):
        return None
    if not (url and environment_id and token):
        raise RemoteConfigurationError(_INCOMPLETE)
    return RemoteExecServerConnectArgs(
        url=url, environment_id=environment_id, token=token, account_id=account_id or None, options=options
    )
