"""Asks a provider for its keys: for its configuration (OpenID Connect Discovery 1.0), then for the key set.

Over https, or plain on the loopback.  No redirect is followed, and time and size of an answer are bounded.
Proxies and certificate authorities are those of the environment, except for the loopback: no proxy stands
between, and none would be given a plain request for keys.
"""

from __future__ import annotations

from collections.abc import Mapping

from execserver.access.jwt_parts import Malformed, strict_object
from execserver.access.oidc.issuer_url import BadIssuer, configuration_url, key_url
from execserver.access.oidc.key_set import MAX_BYTES, BadKeySet, KeySet, read_key_set
from execserver.access.oidc.keys import NoKeys
from execserver.http_client.fetch import Answer, DeadlinePassed, Fetcher, RequestFailed
from execserver.http_client.headers import Headers
from execserver.http_client.request import PreparedRequest
from execserver.http_client.response_events import BrokenResponse
from execserver.http_client.url import Url

REQUEST_S = 5.0  # for each of the two requests, up to the end of its answer
_OK = 200


def fetch_keys(issuer: str, environ: Mapping[str, str]) -> KeySet:
    """Return the keys of a provider; blocks its greenlet.  Raises NoKeys."""
    try:
        asked = configuration_url(issuer)
        configuration = strict_object(_get(asked, environ))
        # Else one provider could speak for another one.
        if configuration.get("issuer") != issuer:
            raise NoKeys(f"{asked.text} is the configuration of another issuer; both must be the same text")
        found = key_url(configuration.get("jwks_uri"), asked)
        return read_key_set(_get(found, environ))
    except BadIssuer as error:
        raise NoKeys(str(error)) from None
    except Malformed as error:
        raise NoKeys(f"the configuration is {error}") from None
    except BadKeySet as error:
        raise NoKeys(f"the key set cannot be used: {error}") from None


def _get(url: Url, environ: Mapping[str, str]) -> bytes:
    """Return the body at a URL.  Raises NoKeys."""
    headers = Headers()
    headers.add(b"accept", b"application/json")
    request = PreparedRequest("", "GET", url, headers, frozenset(), b"", REQUEST_S, False, False)
    try:
        answer = Fetcher({} if url.is_loopback else environ, 0).fetch(request)
    except RequestFailed as failed:
        raise NoKeys(": ".join(filter(None, [str(failed), _reason(failed.__cause__)]))) from None
    try:
        if answer.head.status != _OK:
            raise NoKeys(f"{url.text} answered {answer.head.status}, where only {_OK} counts")
        return _read(answer, url)
    finally:
        answer.exchange.close()


def _read(answer: Answer, url: Url) -> bytes:
    pieces: list[bytes] = []
    size = 0
    try:
        with answer.deadline.running():
            while piece := answer.exchange.read():
                pieces.append(piece)
                size += len(piece)
                if size > MAX_BYTES:
                    raise NoKeys(f"the answer of {url.text} is longer than {MAX_BYTES} bytes")
    except (DeadlinePassed, BrokenResponse) as error:
        raise NoKeys(f"the answer of {url.text} did not come whole: {_reason(error)}") from None
    return b"".join(pieces)


def _reason(cause: BaseException | None) -> str:
    return f"no answer within {REQUEST_S:.0f} s" if isinstance(cause, DeadlinePassed) else str(cause or "")
