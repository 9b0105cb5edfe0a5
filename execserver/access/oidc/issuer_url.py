"""The URLs of a provider: which may be asked for keys.  Pure.

Keys decide who gets in, so they come over https, or from the loopback.
"""

from __future__ import annotations

from execserver.http_client.url import BadUrl, Url, parse

_CONFIGURATION = "/.well-known/openid-configuration"


class BadIssuer(ValueError):
    """A URL cannot be one of a provider; the text is for the user."""


def configuration_url(issuer: str) -> Url:
    """Return where an issuer says what it is.  Raises BadIssuer."""
    url = _secure(issuer, "the issuer")
    if url.query is not None:
        raise BadIssuer(f"the issuer {url.text} has a query, as no issuer has")
    return parse(issuer.rstrip("/") + _CONFIGURATION)


def key_url(found: object, configuration: Url) -> Url:
    """Return the URL of the key set as a configuration names it.  Raises BadIssuer."""
    if not isinstance(found, str):
        raise BadIssuer(f"{configuration.text} names no jwks_uri")
    url = _secure(found, "the jwks_uri")
    # A provider elsewhere has no business with what listens on this machine's loopback.
    if url.is_loopback and not configuration.is_loopback:
        raise BadIssuer(f"{configuration.text} names a jwks_uri on the loopback of this machine")
    return url


def _secure(text: str, what: str) -> Url:
    try:
        url = parse(text)
    except BadUrl as error:
        raise BadIssuer(f"{what} is no http or https URL: {error}") from None
    if url.userinfo or url.fragment is not None:
        raise BadIssuer(f"{what} {url.text} has a user or a fragment")
    if url.scheme != "https" and not url.is_loopback:
        raise BadIssuer(f"{what} {url.text} is not https, and not on the loopback")
    return url
