"""From the options `--ws-auth ...` to an authenticator: what may stand together, and the files they name.

The texts are those of the reference server.  Files are read once, here; a secret is in no text and no repr.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from execserver.access.bearer import CapabilityToken, is_sha256
from execserver.access.identity import Authenticator
from execserver.access.signed_token import DEFAULT_SKEW_S, Expected, SignedToken
from execserver.protocol.errors import os_error_text

CAPABILITY, SIGNED, ISSUED = "capability-token", "signed-bearer-token", "execserver-token"

_MAX_SECRET_BYTES = 1024 * 1024
_MIN_SHARED_SECRET_BYTES = 32
_MAX_SKEW_S = 2**63 - 1
_WITHOUT_MODE = "websocket auth flags require `--ws-auth capability-token` or `--ws-auth signed-bearer-token`"
_OF_SIGNED = (
    "`--ws-shared-secret-file`, `--ws-issuer`, `--ws-audience`, and `--ws-max-clock-skew-seconds` "
    "require `--ws-auth signed-bearer-token`"
)
_OF_CAPABILITY = (
    "`--ws-token-file` and `--ws-token-sha256` require `--ws-auth capability-token`, "
    "not `signed-bearer-token`"
)


class WsAuthError(Exception):
    """The options cannot be obeyed; the text is for the user."""


class WsAuthOptions(NamedTuple):
    """The options as they were given."""

    mode: str | None = None
    token_file: str | None = None
    token_sha256: str | None = None
    shared_secret_file: str | None = None
    issuer: str | None = None
    audience: str | None = None
    max_clock_skew_s: int | None = None

    @property
    def of_capability(self) -> bool:
        """True if an option of the capability token was given."""
        return (self.token_file, self.token_sha256) != (None, None)

    @property
    def of_signed(self) -> bool:
        """True if an option of signed tokens was given."""
        rest = (self.shared_secret_file, self.issuer, self.audience, self.max_clock_skew_s)
        return rest != (None, None, None, None)


def make_authenticator(options: WsAuthOptions) -> Authenticator | None:
    """Return what the options ask for, None if they ask for nothing; raise WsAuthError."""
    if options.mode is None:
        if options.of_capability or options.of_signed:
            raise WsAuthError(_WITHOUT_MODE)
        return None
    if options.mode == CAPABILITY:
        return _capability(options)
    return _issued(options) if options.mode == ISSUED else _signed(options)


def _capability(options: WsAuthOptions) -> Authenticator:
    if options.of_signed:
        raise WsAuthError(_OF_SIGNED)
    path, digest = options.token_file, options.token_sha256
    if path is not None and digest is not None:
        raise WsAuthError("`--ws-token-file` and `--ws-token-sha256` are mutually exclusive")
    if path is not None:
        return CapabilityToken.of(read_secret(path))
    if digest is None:
        raise WsAuthError(
            "`--ws-token-file` or `--ws-token-sha256` is required when `--ws-auth capability-token` is set"
        )
    if not is_sha256(digest.strip()):
        raise WsAuthError("--ws-token-sha256 must be a 64-character hex SHA-256 digest")
    return CapabilityToken(bytes.fromhex(digest.strip()))


def _signed(options: WsAuthOptions) -> Authenticator:
    if options.of_capability:
        raise WsAuthError(_OF_CAPABILITY)
    path = options.shared_secret_file
    if path is None:
        raise WsAuthError("`--ws-shared-secret-file` is required when `--ws-auth signed-bearer-token` is set")
    skew = DEFAULT_SKEW_S if options.max_clock_skew_s is None else options.max_clock_skew_s
    if skew > _MAX_SKEW_S:
        raise WsAuthError("websocket auth clock skew must fit in a signed 64-bit integer")
    secret = read_secret(path).encode()
    if len(secret) < _MIN_SHARED_SECRET_BYTES:
        raise WsAuthError(f"signed websocket bearer secret {os.path.abspath(path)} must be at least 32 bytes")
    return SignedToken(secret, Expected(_unless_blank(options.issuer), _unless_blank(options.audience), skew))


def _issued(options: WsAuthOptions) -> Authenticator:
    from execserver.access.tokens.authenticator import TokenAuthenticator  # late: no other mode needs them
    from execserver.access.tokens.store import TokenStoreError, default_folder

    if options.of_capability or options.of_signed:
        raise WsAuthError("`--ws-auth execserver-token` takes no other websocket auth flags")
    try:
        return TokenAuthenticator(default_folder(os.environb))
    except TokenStoreError as error:
        raise WsAuthError(str(error)) from None


def read_secret(path: str) -> str:
    """Return what a file holds, without the blanks around it; raise WsAuthError."""
    shown = os.path.abspath(path)
    try:
        with open(shown, "rb") as file:
            data = file.read(_MAX_SECRET_BYTES + 1)
        if len(data) > _MAX_SECRET_BYTES:
            raise WsAuthError(f"websocket auth secret {shown} must not be larger than 1 MiB")
        secret = data.decode().strip()
    except UnicodeDecodeError:
        reason = "stream did not contain valid UTF-8"
        raise WsAuthError(f"failed to read websocket auth secret {shown}: {reason}") from None
    except OSError as error:
        reason = os_error_text(error.errno or 0)
        raise WsAuthError(f"failed to read websocket auth secret {shown}: {reason}") from None
    if not secret:
        raise WsAuthError(f"websocket auth secret {shown} must not be empty")
    return secret


def _unless_blank(text: str | None) -> str | None:
    """Return a text without blanks around it; None, which expects nothing, if nothing is left."""
    return (text or "").strip() or None
