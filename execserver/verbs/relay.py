"""`execserver relay`: the relay people host, and `execserver relay token`: who may use it.

The help texts are the grammar, as for the server; a value never starts with a dash.
"""

from __future__ import annotations

import os
import sys

from execserver import arguments
from execserver.listen_url import ExecServerListenUrlParseError, WsListen, parse_listen_url
from execserver.protocol.errors import os_error_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from execserver.relay.app import RelayConfig

HELP = """\
Let remote environments and their users meet: registry and rendezvous in one process, blind to what they say.

Usage: execserver relay [OPTIONS]
       execserver relay token create --environment-id <ID> [--role <ROLE>] [--token-file <FILE>]
       execserver relay token list [--token-file <FILE>]
       execserver relay token revoke <TOKEN-ID> [--token-file <FILE>]

Options:
  --listen <URL>            http://IP:PORT, or https:// with a certificate [default: http://127.0.0.1:0]
                            Port 0 takes a free one. The URL in use is printed on stdout, alone on a line.
  --tls-cert <FILE>         Certificate with its chain, PEM. SIGHUP reads it anew.
  --tls-key <FILE>          Its key, PEM.
  --insecure-http           Serve http:// on an address that is not this machine's own, as behind a proxy that
                            does TLS: tokens travel in the clear between the two.
  --public-url <URL>        What others reach it by, when that is not the address they ask for,
                            e.g. https://relay.example.org
  --token-file <FILE>       Who may use it [default: ~/.config/execserver/relay-tokens.json]
  --state <FILE>            Keep registrations in this SQLite file, over a restart. Without, in memory.
  --max-streams <N>         Streams of one environment at a time [default: 128]
  --max-harnesses <N>       Connected harnesses of one environment [default: 64]
  --max-connections <N>     Connections of the whole relay [default: 20000]
  --rate <MIB>              MiB a second of one environment, both ways together; 0: no limit [default: 64]
  --drain <SECONDS>         Between SIGTERM and the goodbye to everybody who is connected [default: 5]
  --public-metrics          Tell /metrics to everybody, not only to this machine.
  --log-level <LEVEL>       off, error, warn, info, debug or trace [default: info]
  --log-format <FORMAT>     text or json.
  -h, --help                Print this text and exit.

GET /readyz answers 200, and 503 while it shuts down. GET /metrics is for Prometheus.

A machine becomes reachable, and a client reaches it (TOKEN as `relay token create` printed it):
  CODEX_API_KEY=TOKEN execserver --remote http://127.0.0.1:PORT --environment-id ID
  CODEX_EXEC_SERVER_NOISE_REGISTRY_URL=http://127.0.0.1:PORT CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID=ID \\
    CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN=TOKEN codex
"""

TOKEN_HELP = """\
Who may use the relay. A token is for one environment and a role; the file keeps only its hash.

Usage: execserver relay token create --environment-id <ID> [OPTIONS]
       execserver relay token list [OPTIONS]
       execserver relay token revoke <TOKEN-ID> [OPTIONS]

Options:
  --environment-id <ID>     The environment the token is for: letters, digits, `_` and `-`.
  --role <ROLE>             executor (the machine), harness (its users) or both [default: both]
  --token-file <FILE>       The file of the relay [default: ~/.config/execserver/relay-tokens.json]
  -h, --help                Print this text and exit.

The token is printed once and cannot be shown again. A running relay notices a change within two seconds; what
was opened with a revoked token is ended.
"""

_CHOICES = {
    "--log-level": ("off", "error", "warn", "info", "debug", "trace"),
    "--log-format": ("text", "json"),
    "--role": ("executor", "harness", "both"),
}
_PROGRAM = "execserver relay"
_MIB = 1024 * 1024
_MAX_NUMBER = 1_000_000


class _Leave(Exception):
    """The command line decides the outcome: the status, and what to print where."""

    def __init__(self, status: int, *, stdout: str = "", stderr: str = "") -> None:
        super().__init__(stderr)
        self.status = status
        self.stdout = stdout
        self.stderr = stderr


def main() -> int:
    """Do what the arguments say; return 0, 1 when that cannot be done, 2 for wrong usage."""
    given = sys.argv[1:]
    try:
        if given[:1] == ["token"]:
            return _token(given[1:])
        return _relay(_options(given, HELP, _PROGRAM))
    except _Leave as leave:
        sys.stdout.write(leave.stdout)
        sys.stderr.write(leave.stderr)
        return leave.status


def _options(given: list[str], help_text: str, program: str) -> dict[str, str]:
    """Return option -> value, `""` for those without one."""
    checked = arguments.check(given, arguments.read_table(help_text, frozenset(), _CHOICES))
    if isinstance(checked, arguments.Mistake):
        raise _Leave(2, stderr=checked.text(program))
    if "--help" in checked:
        raise _Leave(0, stdout=help_text)
    return dict(word.partition("=")[::2] for word in checked)


def _relay(options: dict[str, str]) -> int:
    listen, tls = _address(options)
    config = _config(options)
    from execserver import log
    from execserver.relay.app import serve  # late: with gevent
    from execserver.relay.errors import CannotServe
    from execserver.relay.listener import bind
    from execserver.settings import Settings

    chosen = options.get("--log-level") or _level_from_environment() or "info"
    log.configure(chosen, options.get("--log-format", "text"))
    try:
        sock = bind(listen, Settings.from_environment(os.environ))
        return serve(config, sock, lambda: _announce(sock, tls))
    except KeyboardInterrupt:
        return 0
    except CannotServe as error:
        raise _error(str(error)) from None
    except OSError as error:
        text = os_error_text(error.errno) if error.errno and error.errno > 0 else str(error)
        raise _error(f"{error.filename}: {text}" if error.filename else text) from None


def _address(options: dict[str, str]) -> tuple[WsListen, bool]:
    url = options.get("--listen", "http://127.0.0.1:0")
    scheme, separator, rest = url.partition("://")
    try:
        listen = parse_listen_url(f"ws://{rest}") if separator and scheme in ("http", "https") else None
    except ExecServerListenUrlParseError:
        listen = None
    if not isinstance(listen, WsListen):
        raise _error(f"invalid --listen URL `{url}`; expected `http://IP:PORT` or `https://IP:PORT`")
    tls = scheme == "https"
    named = ("--tls-cert" in options, "--tls-key" in options)
    if named != (tls, tls):
        raise _error("`--listen https://...` needs --tls-cert and --tls-key, and `http://...` takes neither")
    if not (tls or "--insecure-http" in options or _is_loopback(listen.host)):
        raise _error(
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
        raise _error(str(error)) from None
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
        raise _Leave(2, stderr=f"error: invalid value '{text}' for '{name}': expected a whole number\n")
    return int(text)


def _public_url(url: str | None) -> str | None:
    """Return the URL with a websocket's scheme and without a slash at its end."""
    if url is None:
        return None
    scheme, separator, rest = url.partition("://")
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    if not separator or scheme not in schemes or not rest.strip("/") or any(c in rest for c in "?# "):
        raise _error(f"invalid --public-url `{url}`; expected e.g. `https://relay.example.org`")
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
        pass  # a reader that has gone is no reason to stop serving


def _token(given: list[str]) -> int:
    action = given[0] if given else ""
    if action in ("-h", "--help"):
        raise _Leave(0, stdout=TOKEN_HELP)
    actions = {"create": _create, "list": _list, "revoke": _revoke}
    if action not in actions:
        message = f"unexpected argument '{action}' found" if action else "an action is missing"
        raise _Leave(2, stderr=arguments.Mistake(message, "<create|list|revoke>").text(f"{_PROGRAM} token"))
    from execserver.relay.tokens import TokenFileError

    try:
        return actions[action](given[1:])
    except TokenFileError as error:
        raise _error(str(error)) from None


def _create(given: list[str]) -> int:
    from execserver.relay import tokens

    options = _options(given, TOKEN_HELP, f"{_PROGRAM} token create")
    if "--environment-id" not in options:
        message = "the following required arguments were not provided:\n  --environment-id <ID>"
        mistake = arguments.Mistake(message, "--environment-id <ID> [OPTIONS]")
        raise _Leave(2, stderr=mistake.text(f"{_PROGRAM} token create"))
    path = _token_file(options)
    try:
        token, text = tokens.create(path, options["--environment-id"], options.get("--role", tokens.BOTH))
    except ValueError as error:
        raise _error(str(error)) from None
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
    note = f"token {token.id} for environment {token.environment_id}, role {token.role}, in {path}"
    sys.stderr.write(f"{note}; it is shown this once\n")
    return 0


def _list(given: list[str]) -> int:
    from execserver.relay import tokens

    options = _options(given, TOKEN_HELP, f"{_PROGRAM} token list")
    for token in tokens.read(_token_file(options)):
        sys.stdout.write(f"{token.id}  {token.role:<8}  {token.created}  {token.environment_id}\n")
    return 0


def _revoke(given: list[str]) -> int:
    from execserver.relay import tokens

    names = [given[0]] if given and not given[0].startswith("-") else []
    options = _options(given[len(names) :], TOKEN_HELP, f"{_PROGRAM} token revoke")
    if not names:
        message = "the following required arguments were not provided:\n  <TOKEN-ID>"
        mistake = arguments.Mistake(message, "<TOKEN-ID> [OPTIONS]")
        raise _Leave(2, stderr=mistake.text(f"{_PROGRAM} token revoke"))
    path = _token_file(options)
    if not tokens.revoke(path, names[0]):
        raise _error(f"there is no token {names[0]} in {path}; `relay token list` shows what there is")
    sys.stderr.write(f"token {names[0]} is revoked\n")
    return 0


def _error(text: str) -> _Leave:
    return _Leave(1, stderr=f"Error: {text}\n")
