"""`codex exec-server forward`: register an exec-server that runs elsewhere as a remote environment.

The command line is the reference's: its options, its mistakes and the order in which they are found.  What
has no effect on a program that starts no process is taken and ignored, as there.
"""

from __future__ import annotations

import sys

from execserver.arguments import Parsed, Program, missing, read_table
from execserver.cli import Options, from_environment, options_of, run_forward
from execserver.codex_options import refuse_direct, wrong_value
from execserver.leaving import until_left
from execserver.version import __version__

_REQUIRED = {"--remote": "<URL>", "--environment-id": "<ID>", "--connect": "<URL>"}
_USAGE = " ".join(f"{name} {value}" for name, value in _REQUIRED.items())
HELP = f"""\
Register an exec-server that runs elsewhere as a remote environment.

Usage: codex exec-server forward [OPTIONS] {_USAGE}

Each harness that connects gets a WebSocket of its own to the destination; messages pass unchanged.

Options:
  --connect <URL>           The exec-server to forward to: ws:// or wss://.
  --remote <URL>            Register with the registry at this base URL.
  --environment-id <ID>     Environment to register as.
  --name <NAME>             Name of the environment, for the log.
  --use-agent-identity-auth
                            Authenticate the registration with the Agent Identity in CODEX_ACCESS_TOKEN.
  --registration-bearer-stdin
                            Take the registration's bearer token from stdin: one line, at most 16 KiB.
  --executor-credential-stdin
                            Take credentials from stdin: a line of JSON each; a later one takes the place of
                            the one before. Ends with stdin.
  --api-key-host <HOST>     Let an API key go to this host, too, over https.
  --exit-on-stdin-close     End when stdin does, as on SIGTERM.
  --remote-transport <REMOTE_TRANSPORT>
                            noise; direct cannot forward.
  --aws-sigv4               Not part of this program, as are the three that follow.
  --aws-region <REGION>
  --aws-profile <PROFILE>
  --aws-service <SERVICE>
  --linux-sandbox-pid-namespace <MODE>
                            Without an effect: the destination starts the processes.
  --proxy-private-ips-via-upstream
                            Without an effect, for the same reason.
  -c, --config <key=value>  chatgpt_base_url and cli_auth_credentials_store count. May be repeated.
  --strict-config           Refuse -c/--config fields the codex CLI does not know.
  --enable <FEATURE>        Accepted; may be repeated.
  --disable <FEATURE>       Accepted; may be repeated.
  --log-level <LEVEL>       off, error, warn, info, debug or trace.
  --log-format <FORMAT>     text or json.
  -h, --help                Print this text and exit.
"""
_REPEATABLE = frozenset({"--config", "--enable", "--disable"})
_CHOICES = {
    "--log-level": ("off", "error", "warn", "info", "debug", "trace"),
    "--log-format": ("text", "json"),
    "--remote-transport": ("noise", "direct"),
}


def main(argv: list[str] | None = None) -> int:
    """Forward as the arguments say (default: those of the process); return the exit status."""
    return until_left(lambda: _main(sys.argv[1:] if argv is None else argv))


def _main(argv: list[str]) -> int:
    given = parse(argv)
    return run_forward(options(given), given.options["--connect"])


def parse(argv: list[str]) -> Parsed:
    """Return the options, or raise Leave: for help, and for every mistake."""
    table = read_table(HELP, _REPEATABLE, _CHOICES)
    program = Program(
        "codex exec-server forward", table, lambda: HELP, f"execserver {__version__}\n", usage=_USAGE
    )
    parsed = program.parse(argv)
    given = parsed.options
    if absent := tuple(f"{name} {value}" for name, value in _REQUIRED.items() if name not in given):
        raise program.mistaken(missing(absent))
    if more := from_environment(program, argv):
        parsed = program.parse([*more, *argv])
    if (mistake := wrong_value(parsed.words)) is not None:
        raise program.mistaken(mistake)
    refuse_direct(parsed.words, forwards=True)
    return parsed


def options(parsed: Parsed) -> Options:
    """Return the options as the server's own, without those that have no effect here."""
    found = options_of(parsed)
    return found._replace(listen="", inherit_pid_namespace=False, private_ips_via_upstream=False)
