"""From the options about who may connect to what a listener needs for it.

Loaded only when such an option is given: what a plain server prints first must not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from execserver.access.identity import Authenticator
from execserver.access.oidc.options import MODE as OIDC
from execserver.access.oidc.options import OidcOptionError, OidcOptions, make_oidc
from execserver.access.ws_auth import WsAuthError, WsAuthOptions, make_authenticator
from execserver.listen_url import Listen, Stdio, WsListen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.access.tls import TlsFiles

_ONLY_SKEW = "of the other websocket auth flags `--ws-auth oidc` takes `--ws-max-clock-skew-seconds` only"


class EntryError(Exception):
    """The options about who may connect cannot be obeyed; the text is for the user."""


class Entry(NamedTuple):
    """How a listener lets peers in; the default asks nobody.

    `begin` is what the server does once it listens, in a greenlet, since it may wait for others.
    """

    authenticator: Authenticator | None = None
    tls: TlsFiles | None = None
    begin: Callable[[], None] | None = None

    @property
    def asks(self) -> bool:
        """True if a peer has to prove who it is."""
        return self.authenticator is not None or (self.tls is not None and self.tls.client_ca is not None)


def make_entry(options: dict[str, str]) -> Entry:
    """Return the entry that these options (name -> value) ask for; raise EntryError."""
    skew = options.get("--ws-max-clock-skew-seconds")
    skew_s = None if skew is None else int(skew)
    oidc = OidcOptions(
        options.get("--oidc-issuer"), options.get("--oidc-audience"), options.get("--oidc-jwks")
    )
    mode = options.get("--ws-auth")
    ws = WsAuthOptions(
        mode=mode,
        token_file=options.get("--ws-token-file"),
        token_sha256=options.get("--ws-token-sha256"),
        shared_secret_file=options.get("--ws-shared-secret-file"),
        issuer=options.get("--ws-issuer"),
        audience=options.get("--ws-audience"),
        max_clock_skew_s=skew_s,
    )
    try:
        if mode != OIDC:
            oidc.check_absent()
            return Entry(make_authenticator(ws), _tls_files(options))
        if ws.of_capability or ws._replace(max_clock_skew_s=None).of_signed:
            raise EntryError(_ONLY_SKEW)
        authenticator, begin = make_oidc(oidc, skew_s)
        return Entry(authenticator, _tls_files(options), begin)
    except (WsAuthError, OidcOptionError) as error:
        raise EntryError(str(error)) from None


def _tls_files(options: dict[str, str]) -> TlsFiles | None:
    """Return the files of the TLS options, which are tried here; raise EntryError."""
    certificate, key = options.get("--tls-cert"), options.get("--tls-key")
    client_ca = options.get("--client-ca")
    if certificate is None or key is None:
        if (certificate, key, client_ca) != (None, None, None):
            raise EntryError("--tls-cert, --tls-key and --client-ca need a certificate and its key")
        return None
    from execserver.access.tls import TlsError, TlsFiles, make_context  # late: only TLS needs OpenSSL

    files = TlsFiles(certificate, key, client_ca)
    try:
        make_context(files)
    except TlsError as error:
        raise EntryError(str(error)) from None
    return files


def check_fits(entry: Entry, listen: Listen, *, remote: bool) -> None:
    """Raise EntryError where there is no listener that could do what the entry says."""
    if (entry.tls is not None) != (isinstance(listen, WsListen) and listen.tls):
        raise EntryError("`--listen wss://...` needs --tls-cert and --tls-key, and no other takes them")
    if entry.asks and remote:
        raise EntryError("WebSocket listener auth cannot be used with --remote or forward")
    if entry.asks and isinstance(listen, Stdio):
        raise EntryError("WebSocket auth requires a WebSocket listener, not stdio")
