"""`execserver relay`: registry and rendezvous to host oneself; `execserver relay token`: who may use them.

The help texts are the grammar, as for the server; a value never starts with a dash.
"""

from __future__ import annotations

import os
import sys

from execserver.arguments import Mistake, Program, missing, read_table
from execserver.leaving import Leave, failure, until_left
from execserver.listen_url import ExecServerListenUrlParseError, WsListen, parse_listen_url
from execserver.protocol.errors import os_error_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from execserver.relay.app import RelayConfig

HELP = """\
Host a relay for remote environments: registry and rendezvous in one process, blind to the content.

Usage: execserver relay [OPTIONS]
       execserver relay token create --environment-id <ID> [--role <ROLE>] [--token-file <FILE>]
       execserver relay token list [--token-file <FILE>]
       execserver relay token revoke <TOKEN-ID> [--token-file <FILE>]

Options:
  --listen <URL>            http://IP:PORT, or https:// with a certificate [default: http://127.0.0.1:0]
                            Port 0 takes a free one. The URL in use is printed on stdout, alone on a line.
  --tls-cert <FILE>         Certificate with its chain, PEM. SIGHUP reloads it.
  --tls-key <FILE>          Its key, PEM.
  --insecure-http           Serve http:// on an address other than loopback, for instance behind a proxy that
                            does TLS: tokens travel in the clear between the two.
  --public-url <URL>        The URL others reach it by, when that is not the address they ask for,
                            e.g. https://relay.example.org
  --token-file <FILE>       Who may use it [default: ~/.config/execserver/relay-tokens.json]
  --state <FILE>            Keep registrations in this SQLite file, over a restart. Default: in memory.
  --max-streams <N>         Streams of one environment at a time [default: 128]
  --max-harnesses <N>       Connected harnesses of one environment [default: 64]
  --max-connections <N>     Connections of the whole relay [default: 20000]
  --rate <MIB>              MiB a second of one environment, both ways together; 0: no limit [default: 64]
  --drain <SECONDS>         Between SIGTERM and the closing of all connections [default: 5]
  --public-metrics          Serve /metrics to everybody, not only to this machine.
  --log-level <LEVEL>       off, error, warn, info, debug or trace [default: info]
  --log-format <FORMAT>     text or json.
  -h, --help                Print this text and exit.

GET /readyz answers 200, and 503 while it shuts down. GET /metrics is for Prometheus.

To make a machine reachable, and to reach it (TOKEN as `relay token create` printed it):
  CODEX_API_KEY=TOKEN execserver --remote http://127.0.0.1:PORT --environment-id ID
  CODEX_EXEC_SERVER_NOISE_REGISTRY_URL=http://127.0.0.1:PORT CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID=ID \\
    CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN=TOKEN codex
"""

TOKEN_HELP = """\
Manage who may use the relay. A token is for one environment and a role; the file keeps only its hash.

Usage: execserver relay token create --environment-id <ID> [OPTIONS]
       execserver relay token list [OPTIONS]
       execserver relay token revoke <TOKEN-ID> [OPTIONS]

Options:
  --environment-id <ID>     The environment the token is for: letters, digits, `_` and `-`.
  --role <ROLE>             executor (the machine), harness (its users) or both [default: both]
  --token-file <FILE>       The file of the relay [default: ~/.config/execserver/relay-tokens.json]
  -h, --help                Print this text and exit.

The token is printed once and cannot be shown again. A running relay notices a change within two seconds,
and closes what was opened with a revoked token.
"""

_CHOICES = {
    "--log-level": ("off", "error", "warn", "info", "debug", "trace"),
    "--log-format": ("text", "json"),
    "--role": ("executor", "harness", "both"),
}
_PROGRAM = "execserver relay"
_MIB = 1024 * 1024
_MAX_NUMBER = 1_000_000


def main() -> int:
    """Do what the arguments say; return 0, 1 if that cannot be done, 2 for wrong usage."""
    return until_left(_main)


def _main() -> int:
    given = sys.argv[1:]
    if given[:1] == ["token"]:
        return _token(given[1:])
    return _relay(_program(HELP, _PROGRAM).parse(given).options)


def _program(help_text: str, name: str, operands: tuple[str, ...] = (), usage: str | None = None) -> Program:
    return Program(
        name, read_table(help_text, choices=_CHOICES), lambda: help_text, operands=operands, usage=usage
    )


def _relay(options: dict[str, str]) -> int:
    listen, tls = _address(options)
    config = _config(options)
    from execserver import log
    from execserver.listening import bind
    from execserver.relay.app import serve  # late: with gevent
    from execserver.relay.errors import CannotServe
    from execserver.settings import Settings

    chosen = options.get("--log-level") or _level_from_environment() or "info"
    log.configure(chosen, options.get("--log-format", "text"))
    try:
        sock = bind(listen, Settings.from_environment(os.environ))
        return serve(config, sock, lambda: _announce(sock, tls))
    except KeyboardInterrupt:
        return 0
    except CannotServe as error:
        raise failure(str(error)) from None
    except OSError as error:
        text = os_error_text(error.errno) if error.errno and error.errno > 0 else str(error)
        raise failure(f"{error.filename}: {text}" if error.filename else text) from None


def _address(options: dict[str, str]) -> tuple[WsListen, bool]:
    url = options.get("--listen", "http://127.0.0.1:0")
    scheme, separator, rest = url.partition("://")
    try:
        listen = parse_listen_url(f"ws://{rest}") if separator and scheme in ("http", "https") else None
    except ExecServerListenUrlParseError:
        listen = None
    if not isinstance(listen, WsListen):
        raise failure(f"invalid --listen URL `{url}`; expected `http://IP:PORT` or `https://IP:PORT`")
    tls = scheme == "https"
    named = ("--tls-cert" in options, "--tls-key" in options)
    if named != (tls, tls):
        raise failure("`--listen https://...` needs --tls-cert and --tls-key, and `http://...` takes neither")
    # Tokens in the clear may leave this machine only if the user says so.
    if not (tls or "--insecure-http" in options or _is_loopback(listen.host)):
        raise failure(
            f"{url} would send tokens in the clear: use https:// with --tls-cert and --tls-key, or say "
            "--insecure-http if something in front of it does TLS"
        )
    return listen, tls


def _is_loopback(host: str) -> bool:
    from ipaddress import ip_address

    return ip_address(host).is_loopback


def _config(options: dict[str, str]) -> RelayConfig:
    from execserver.relay.app import RelayConfig
    from execserver.relay.limits import LimitError, Limits

    defaults = Limits()
    limits = defaults._replace(
        streams=_number(options, "--max-streams", defaults.streams),
        harnesses=_number(options, "--max-harnesses", defaults.harnesses),
        connections=_number(options, "--max-connections", defaults.connections),
        bytes_per_s=_number(options, "--rate", defaults.bytes_per_s // _MIB) * _MIB,
        drain_s=_number(options, "--drain", int(defaults.drain_s)),
    )
    try:
        limits = limits.changed_by(os.environ)
    except LimitError as error:
        raise failure(str(error)) from None
    return RelayConfig(
        token_file=_token_file(options),
        limits=limits,
        state_path=options.get("--state"),
        certificate=options.get("--tls-cert"),
        key=options.get("--tls-key"),
        public_url=_public_url(options.get("--public-url")),
        public_metrics="--public-metrics" in options,
    )


def _number(options: dict[str, str], name: str, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) > _MAX_NUMBER:
        wrong = Mistake(f"invalid value '{text}' for '{name}': expected a whole number", None)
        raise wrong.leave(_PROGRAM)
    return int(text)


def _public_url(url: str | None) -> str | None:
    """Return the URL with a WebSocket scheme and without a slash at its end."""
    if url is None:
        return None
    scheme, separator, rest = url.partition("://")
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    if not separator or scheme not in schemes or not rest.strip("/") or any(c in rest for c in "?# "):
        raise failure(f"invalid --public-url `{url}`; expected e.g. `https://relay.example.org`")
    return f"{schemes[scheme]}://{rest.rstrip('/')}"


def _token_file(options: dict[str, str]) -> str:
    from execserver.relay.tokens import default_token_file

    return options.get("--token-file") or default_token_file(os.environ)


def _level_from_environment() -> str | None:
    from execserver import log

    named = os.environ.get(log.LEVEL_VARIABLE) or os.environ.get(log.REFERENCE_LEVEL_VARIABLE)
    return log.level_from_environment(os.environ) if named else None


def _announce(sock: socket.socket, tls: bool) -> None:
    from execserver.relay.app import own_base

    url = own_base(sock, tls).replace("ws", "http", 1)
    try:
        os.write(1, f"{url}\n".encode())
    except OSError:
        pass  # if the reader is gone, the relay serves all the same


def _token(given: list[str]) -> int:
    action = given[0] if given else ""
    if action in ("-h", "--help"):
        raise Leave(0, stdout=TOKEN_HELP)
    actions = {"create": _create, "list": _list, "revoke": _revoke}
    if action not in actions:
        message = f"unexpected argument '{action}' found" if action else "an action is missing"
        raise Mistake(message, "<create|list|revoke>").leave(f"{_PROGRAM} token")
    from execserver.relay.tokens import TokenFileError

    try:
        return actions[action](given[1:])
    except TokenFileError as error:
        raise failure(str(error)) from None


def _create(given: list[str]) -> int:
    from execserver.relay import tokens

    program = _program(TOKEN_HELP, f"{_PROGRAM} token create", usage="--environment-id <ID> [OPTIONS]")
    options = program.parse(given).options
    if "--environment-id" not in options:
        raise program.mistaken(missing(("--environment-id <ID>",)))
    path = _token_file(options)
    try:
        token, text = tokens.create(path, options["--environment-id"], options.get("--role", tokens.BOTH))
    except ValueError as error:
        raise failure(str(error)) from None
    sys.stdout.write(f"{text}\n")  # the token alone, so that a script can read it
    sys.stdout.flush()
    note = f"token {token.id} for environment {token.environment_id}, role {token.role}, in {path}"
    sys.stderr.write(f"{note}; it is shown this once\n")
    return 0


def _list(given: list[str]) -> int:
    from execserver.relay import tokens

    options = _program(TOKEN_HELP, f"{_PROGRAM} token list").parse(given).options
    for token in tokens.read(_token_file(options)):
        sys.stdout.write(f"{token.id}  {token.role:<8}  {token.created}  {token.environment_id}\n")
    return 0


def _revoke(given: list[str]) -> int:
    from execserver.relay import tokens

    program = _program(TOKEN_HELP, f"{_PROGRAM} token revoke", ("<TOKEN-ID>",), "<TOKEN-ID> [OPTIONS]")
    parsed = program.parse(given)
    (name,) = parsed.operands
    path = _token_file(parsed.options)
    if not tokens.revoke(path, name):
        raise failure(f"there is no token {name} in {path}; `relay token list` shows what there is")
    sys.stderr.write(f"token {name} is revoked\n")
    return 0
