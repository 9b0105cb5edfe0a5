"""The options of the command line about who may connect: their values, and when a listener may start.

A plain server passes through here before it prints its URL, so what the options need is loaded with them.
"""

from __future__ import annotations

from execserver.arguments import Mistake, Program, unsigned_complaint
from execserver.leaving import failure, write
from execserver.listen_url import InsecureListenUrl, WsListen, parse_listen_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.access.entry import Entry
    from execserver.listen_url import Listen

# They go to `access.entry`, which knows what they mean.
OPTIONS = (
    "--ws-auth",
    "--ws-token-file",
    "--ws-token-sha256",
    "--ws-shared-secret-file",
    "--ws-issuer",
    "--ws-audience",
    "--ws-max-clock-skew-seconds",
    "--oidc-issuer",
    "--oidc-audience",
    "--oidc-jwks",
    "--tls-cert",
    "--tls-key",
    "--client-ca",
)
_PATHS = (
    *("--ws-token-file", "--ws-shared-secret-file", "--oidc-jwks"),
    *("--tls-cert", "--tls-key", "--client-ca"),
)
_NUMBERS = {"--ws-max-clock-skew-seconds": 2**64 - 1}


def check_values(program: Program, options: dict[str, str]) -> None:
    """Raise Leave for the first value that is no path or no number where it must be one."""
    for name, value in options.items():
        shown = program.table[name].shown
        if name in _PATHS and not value:
            raise program.mistaken(Mistake(f"a value is required for '{shown}' but none was supplied", None))
        if name in _NUMBERS and (complaint := unsigned_complaint(value, _NUMBERS[name])):
            raise program.mistaken(Mistake(f"invalid value '{value}' for '{shown}': {complaint}", None))


def listen_and_entry(url: str, options: dict[str, str], *, remote: bool) -> tuple[Listen, Entry | None]:
    """Return where to serve and who may connect; raise ExecServerListenUrlParseError, or Leave.

    None lets everybody in.  The options about that come first, as at the reference server.
    """
    if not options and not url.startswith("wss://"):
        return parse_listen_url(url), None
    from execserver.access.entry import EntryError, check_fits, make_entry

    try:
        entry = make_entry(options)
        listen = parse_listen_url(url)
        check_fits(entry, listen, remote=remote)
    except EntryError as error:
        raise failure(str(error)) from None
    return listen, entry


def check_secure(listen: Listen, entry: Entry | None, url: str, *, warns_only: bool = False) -> None:
    """Raise InsecureListenUrl where others can connect and nobody is asked.

    `warns_only` is for who calls `codex exec-server`: templates that start it have something in front of the
    port, and the original starts without a word.
    """
    if not isinstance(listen, WsListen) or listen.is_loopback or (entry is not None and entry.asks):
        return
    error = InsecureListenUrl(url)
    if not warns_only:
        raise error
    write(2, f"warning: {error}\n  What to do: {error.cure}\n")
