"""`execserver relay`: registry and rendezvous to host oneself.  `relay token` and `relay status` are apart.

The help texts are the grammar, as for the server; a value never starts with a dash.
"""

from __future__ import annotations

import os
import sys

from execserver.arguments import Mistake, Program, read_table
from execserver.leaving import Leave, failure, until_left
from execserver.listen_url import ExecServerListenUrlParseError, WsListen, parse_listen_url
from execserver.protocol.errors import os_error_text
from execserver.runtime_paths import STATE_VARIABLE
from execserver.verbs import relay_engine
from execserver.verbs.relay_token import token_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from execserver.relay.app import RelayConfig

HELP = """\
Host a relay for remote environments: registry and rendezvous in one process, blind to the content.

Usage: execserver relay [OPTIONS]
       execserver relay token <create|list|revoke> ...   Who may use it: `relay token --help`.
       execserver relay status --engine <URL> ...        Relays that share an engine: `relay status --help`.

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
  --engine <URL>            Share registrations and tokens with other relays, in a Redis or Valkey at
                            redis://HOST[:PORT][/DB], rediss:// for TLS, or redis+sentinel://HOST,HOST/MASTER
  --engine-auth <FILE>      One line, USER:PASSWORD or :PASSWORD, in a file that only its owner may read.
  --engine-grace <TIME>     Without its engine a relay goes on for so long, e.g. 90s or 2h [default: 15m]
  --node <NAME>             This relay among those that share the engine [default: this machine's name]
  --node-url <URL>          The URL that leads to this very relay, where a balancer cannot go by `&node=NAME`
  --state <FILE>            Keep registrations in this SQLite file, over a restart. Default: in memory.
  --max-streams <N>         Streams of one environment at a time [default: 128]
  --max-harnesses <N>       Connected harnesses of one environment [default: 64]
  --max-connections <N>     Connections of the whole relay [default: 20000]
  --rate <MIB>              MiB a second of one environment, both ways together; 0: no limit [default: 64]
  --drain <SECONDS>         Between SIGTERM and the closing of all connections [default: 5]
  --upgrade-on-hup          SIGHUP puts what this program's file is now in its place, as `execserver upgrade`.
  --public-metrics          Serve /metrics to everybody, not only to this machine.
  --log-level <LEVEL>       off, error, warn, info, debug or trace [default: info]
  --log-format <FORMAT>     text or json.
  -h, --help                Print this text and exit.

GET /readyz answers 200, and 503 while it shuts down; GET /lb, for balancers, 404 then, and also where the
engine has been away for 30 s. GET /metrics is for Prometheus.

To make a machine reachable, and to reach it (TOKEN as `relay token create` printed it):
  CODEX_API_KEY=TOKEN execserver --remote http://127.0.0.1:PORT --environment-id ID
  CODEX_EXEC_SERVER_NOISE_REGISTRY_URL=http://127.0.0.1:PORT CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID=ID \\
    CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN=TOKEN codex
"""

_CHOICES = {
    "--log-level": ("off", "error", "warn", "info", "debug", "trace"),
    "--log-format": ("text", "json"),
}
_PROGRAM = "execserver relay"
_UPGRADE_ON_HUP = "--upgrade-on-hup"
_MIB = 1024 * 1024
_MAX_NUMBER = 1_000_000


def main() -> int:
    """Do what the arguments say; return 0, 1 if that cannot be done, 2 for wrong usage."""
    return until_left(_main)


def _main() -> int:
    given = sys.argv[1:]
    if given[:1] == ["token"]:
        from execserver.verbs.relay_token import manage

        return manage(given[1:])
    if given[:1] == ["status"]:
        from execserver.verbs.relay_status import show

        return show(given[1:])
    return _relay(_parser().parse(given).options)


def _parser() -> Program:
    return Program(_PROGRAM, read_table(HELP, choices=_CHOICES), lambda: HELP)


def _relay(options: dict[str, str]) -> int:
    listen, tls = _address(options)
    config = _config(options)
    from execserver import log
    from execserver.listening import bind
    from execserver.relay.errors import CannotServe
    from execserver.settings import Settings
    from execserver.upgrading.relay import go_on, serve  # late: with gevent

    chosen = options.get("--log-level") or _level_from_environment() or "info"
    log.configure(chosen, options.get("--log-format", "text"))
    takes_hup = _UPGRADE_ON_HUP in options
    try:
        if STATE_VARIABLE in os.environ:
            return go_on(config, takes_hup)
        sock = bind(listen, Settings.from_environment(os.environ))
        return serve(config, sock, lambda: _announce(sock, tls), takes_hup)
    except KeyboardInterrupt:
        return 0
    except CannotServe as error:
        raise failure(str(error)) from None
    except OSError as error:
        raise _os_failure(error) from None


def _os_failure(error: OSError) -> Leave:
    text = os_error_text(error.errno) if error.errno and error.errno > 0 else str(error)
    return failure(f"{error.filename}: {text}" if error.filename else text)


def check_resuming(words: list[str]) -> None:
    """Raise Leave where a relay with these arguments could not go on in the place of another program."""
    if words[:1] in (["token"], ["status"]):
        raise failure("these are no arguments of a relay")
    options = _parser().parse(words).options
    _address(options)
    config = _config(options)
    import execserver.relay.handed_over
    import execserver.upgrading.relay  # noqa: F401 - a library that is missing is a refusal now
    from execserver.relay.app import check
    from execserver.relay.errors import CannotServe

    if config.membership is not None:
        raise failure("a relay with --engine is ended and started anew instead: streams go on at other nodes")
    try:
        check(config)
    except CannotServe as error:
        raise failure(str(error)) from None
    except OSError as error:
        raise _os_failure(error) from None


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
    from execserver.relay.errors import CannotServe
    from execserver.relay.limits import LimitError, Limits

    defaults = Limits()
    limits = defaults._replace(
        streams=_number(options, "--max-streams", defaults.streams),
        harnesses=_number(options, "--max-harnesses", defaults.harnesses),
        connections=_number(options, "--max-connections", defaults.connections),
        bytes_per_s=_number(options, "--rate", defaults.bytes_per_s // _MIB) * _MIB,
        drain_s=_number(options, "--drain", int(defaults.drain_s)),
        grace_s=relay_engine.grace_s(options, defaults.grace_s),
    )
    try:
        limits = limits.changed_by(os.environ)
        membership = relay_engine.membership(options, _public_url(options, "--node-url"))
    except (LimitError, CannotServe) as error:
        raise failure(str(error)) from None
    in_engine = membership is not None and "--token-file" not in options
    return RelayConfig(
        token_file=None if in_engine else token_file(options),
        limits=limits,
        state_path=options.get("--state"),
        certificate=options.get("--tls-cert"),
        key=options.get("--tls-key"),
        public_url=_public_url(options, "--public-url"),
        public_metrics="--public-metrics" in options,
        membership=membership,
    )


def _number(options: dict[str, str], name: str, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) > _MAX_NUMBER:
        wrong = Mistake(f"invalid value '{text}' for '{name}': expected a whole number", None)
        raise wrong.leave(_PROGRAM)
    return int(text)


def _public_url(options: dict[str, str], name: str) -> str | None:
    """Return the URL of an option with a WebSocket scheme and without a slash at its end."""
    url = options.get(name)
    if url is None:
        return None
    scheme, separator, rest = url.partition("://")
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    if not separator or scheme not in schemes or not rest.strip("/") or any(c in rest for c in "?# |"):
        raise failure(f"invalid {name} `{url}`; expected e.g. `https://relay.example.org`")
    return f"{schemes[scheme]}://{rest.rstrip('/')}"


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
