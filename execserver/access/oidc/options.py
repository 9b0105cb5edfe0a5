"""From the options `--oidc-...` to an authenticator, and what of it waits until the server listens.

What the options say is checked here, and a file is read.  A provider is asked later: it may be slow, or come
after this server.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from execserver.access.oidc.authenticator import DEFAULT_SKEW_S, MAX_SKEW_S, Expected, OidcAuthenticator
from execserver.access.oidc.keys import NoKeys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.access.oidc.key_set import KeySet

MODE = "oidc"


class OidcOptionError(Exception):
    """The options cannot be obeyed; the text is for the user."""


class OidcOptions(NamedTuple):
    """The options as they were given; without a file of keys they come from the issuer."""

    issuer: str | None = None
    audience: str | None = None
    jwks: str | None = None

    def check_absent(self) -> None:
        """Raise OidcOptionError if one was given: another mode would not obey it."""
        if self != OidcOptions():
            raise OidcOptionError(
                "`--oidc-issuer`, `--oidc-audience` and `--oidc-jwks` require `--ws-auth oidc`"
            )


def make_oidc(
    options: OidcOptions, skew_s: int | None
) -> tuple[OidcAuthenticator, Callable[[], None] | None]:
    """Return the authenticator, and what to do once the server listens.  Raises OidcOptionError."""
    expected = _expected(options, skew_s)
    if options.jwks is not None:
        from execserver.access.oidc.key_file import KeyFile  # late: only a file is read here

        try:
            return OidcAuthenticator(KeyFile(options.jwks), expected), None
        except NoKeys as error:
            raise OidcOptionError(str(error)) from None
    return _of_issuer(expected)


def _of_issuer(expected: Expected) -> tuple[OidcAuthenticator, Callable[[], None]]:
    from execserver.access.oidc.issuer_keys import IssuerKeys
    from execserver.access.oidc.issuer_url import BadIssuer, configuration_url

    try:
        configuration_url(expected.issuer)
    except BadIssuer as error:
        raise OidcOptionError(
            f"--oidc-issuer: {error}; or name a file of its keys with --oidc-jwks"
        ) from None

    def fetch() -> KeySet:
        from execserver.access.oidc.issuer import (
            fetch_keys,
        )  # late: it takes time, and the URL is out by then

        return fetch_keys(expected.issuer, os.environ)

    keys = IssuerKeys(fetch)
    return OidcAuthenticator(keys, expected), keys.ask


def _expected(options: OidcOptions, skew_s: int | None) -> Expected:
    issuer, audience = options.issuer, options.audience
    if not issuer or not audience:
        raise OidcOptionError(
            "`--oidc-issuer` and `--oidc-audience` are required when `--ws-auth oidc` is set"
        )
    skew = DEFAULT_SKEW_S if skew_s is None else skew_s
    if skew > MAX_SKEW_S:
        raise OidcOptionError(f"`--ws-max-clock-skew-seconds` is {MAX_SKEW_S} at most with `--ws-auth oidc`")
    return Expected(issuer, audience, skew)
