"""What an upgrade says about who connects; a token never goes over a line that others can read."""

from __future__ import annotations

from typing import Final

from execserver.client.carriers.urls import Address
from execserver.client.errors import InvalidUrl, TokenFileUnusable
from execserver.client.options import ExecServerClientConnectOptions

_MAX_TOKEN_BYTES: Final = 16 * 1024  # more fits no request head


def headers_for(address: Address, options: ExecServerClientConnectOptions) -> dict[str, str]:
    """Return the headers of the upgrade, the token among them; raise InvalidUrl, TokenFileUnusable.

    A token file is read for each connection, so that a token can be replaced while a client lives.
    """
    token = options.token
    if token is None and options.token_file is not None:
        token = token_in(options.token_file)
    if token is None:
        return dict(options.headers)
    if not address.is_private:
        raise InvalidUrl("a token is sent over wss:// or on this machine only: others could read it")
    if not token.isascii() or not token.isprintable() or not token:
        raise InvalidUrl("the token has characters that no header can hold, or is empty")
    return {**options.headers, "Authorization": f"Bearer {token}"}


def token_in(path: str) -> str:
    """Return the token in a file.  Raises `TokenFileUnusable`, and `InvalidUrl` for what is no token."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise TokenFileUnusable(f"cannot read the token file {path}: {error.strerror}") from None
    if len(data) > _MAX_TOKEN_BYTES:
        raise TokenFileUnusable(f"the token file {path} is too large")
    token = data.decode("ascii", "replace").strip()
    if not token.isascii() or not token.isprintable() or not token:
        raise InvalidUrl(f"the token file {path} holds no token")
    return token
