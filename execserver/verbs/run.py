"""`execserver run` and `execserver shell`: a command, or a login shell, on a box, as if it were here."""

from __future__ import annotations

import sys

from execserver.arguments import Mistake, Parsed, Program
from execserver.leaving import failure
from execserver.verbs.boxed import box_of, ended, only_box, program, variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.box.commands.running import Command
    from execserver.box.commands.talking import Stay

HELP = """\
Run a command on a box: its output, input, signals and exit status are yours.

Usage: execserver run [BOX] [OPTIONS] -- <COMMAND> [ARGS]...

What stands before `--` is for execserver, what follows is the command. BOX is a name from `execserver box
add`, or a URL: ws://HOST:PORT, wss://HOST, unix:/PATH, ssh:[USER@]HOST, relay:https://RELAY/ENVIRONMENT.
Without it EXECSERVER_BOX counts; without that, too, the command runs here, in a private server.

Options:
  -t, --tty                 Give the command a terminal. By default it gets one where stdin and stdout are
                            terminals; then stdout and stderr of the command are one.
  -T, --no-tty              Give it none.
  -n, --no-stdin            Give the command an empty input, and leave yours alone.
  -d, --detach              Start it and leave it running; prints its name for `attach`, `logs`, `wait` and
                            `kill`. Its input is empty.
  --name <NAME>             Its name for these verbs and for `ps`.
  --keep <TIME>             How long it goes on without a connection: 90s, 15m, 8h or 7d, as far as the box
                            allows [default: 30 s; with -d 24h]
  --cwd <DIR>               Where to run it; relative to the home on the box. Default: that home, without a
                            box the folder you are in.
  -e, --env <NAME=VALUE>    Set a variable there; NAME alone passes yours on. May be repeated.
  --sandbox <POLICY>        Confine it: read-only, or workspace-write, which may write below DIR and /tmp.
                            Both have no network. What cannot be enforced there is refused. Without a policy
                            the command may do what the box's user may.
  --limit <NAME=VALUE>      What it and all it starts may use at most: memory=512M, processes=50, cpu=150%,
                            time=90s, cpu-time=60s, file=100M, open-files=256. May be repeated. What cannot
                            be held there is refused, or with enforce=best held as far as possible.
  --record <STREAMS>        Have the box record it beside its audit log: output, or all, with what is typed
                            while the terminal shows it. Refused where there is no such log.
  --predict <WHEN>          Show what you type before the box has drawn it: adaptive, which is on slow links,
                            always or never [default: adaptive]
  --token-file <FILE>       Token for the box, on one line. Else the boxes file has it, else EXECSERVER_TOKEN.
  -h, --help                Print this text and exit.

Without a terminal ^C, ^\\, SIGTERM and SIGHUP go to the command; a second SIGTERM ends this program, too. A
lost connection is resumed while the command goes on. Over ssh: and without a box it ends the command.

Exit status: that of the command; 128 and the signal's number if a signal ended it, for a limit with the
reason on stderr. 2 wrong usage, 126 it cannot be started, 127 there is no such program or folder (101 for
both with --sandbox), 141 nobody reads the output, 255 the box cannot be reached, or was lost.
"""

SHELL_HELP = """\
Open the login shell of a box on this terminal.

Usage: execserver shell [BOX] [OPTIONS]

BOX is as for `execserver run`.

Options:
  --name <NAME>             Its name for `execserver attach` and `ps`.
  --keep <TIME>             How long it goes on without a connection: 90s, 15m, 8h or 7d, as far as the box
                            allows [default: 1h]
  --cwd <DIR>               Where it starts; relative to the home on the box. Default: that home.
  -e, --env <NAME=VALUE>    Set a variable there; NAME alone passes yours on. May be repeated.
  --sandbox <POLICY>        Confine the shell and all it starts: read-only or workspace-write.
  --limit <NAME=VALUE>      What it and all it starts may use at most: memory=512M, processes=50, cpu=150%,
                            time=90s, cpu-time=60s, file=100M, open-files=256. May be repeated. What cannot
                            be held there is refused, or with enforce=best held as far as possible.
  --record <STREAMS>        Have the box record it beside its audit log: output, or all, with what is typed
                            while the terminal shows it. Refused where there is no such log.
  --predict <WHEN>          Show what you type before the box has drawn it: adaptive, which is on slow links,
                            always or never [default: adaptive]
  --token-file <FILE>       Token for the box, on one line. Else the boxes file has it, else EXECSERVER_TOKEN.
  -h, --help                Print this text and exit.

At the beginning of a line: ~. ends the session, ~d leaves it running for `execserver attach`, ~? shows the
keys, ~~ types one ~. A lost connection is resumed for as long as the box keeps the session (over ssh: it
ends), and what you type meanwhile is not lost. SIGTERM and a closed terminal end the session. The terminal is
as before afterwards; after SIGKILL of this program `stty sane` restores it.

Exit status: that of the shell; 130 after ~., 128 and the signal's number after a signal, 255 when the box
cannot be reached or was lost.
"""

_USAGE = "[BOX] [OPTIONS] -- <COMMAND> [ARGS]..."


def main() -> int:
    """Run a command; return its exit status."""
    return ended(_run)


def shell() -> int:
    """Open a shell; return its exit status."""
    return ended(_shell)


def _run() -> int:
    given = sys.argv[1:]
    found = program("run", HELP, _USAGE)
    at = given.index("--") if "--" in given else len(given)
    parsed = found.parse(given[:at])
    box = only_box(found, parsed, " (the command stands behind `--`)")
    if not given[at + 1 :]:
        raise found.mistaken(Mistake("a command is missing: write it behind `--`"))
    if "--tty" in parsed.options and "--no-tty" in parsed.options:
        raise found.mistaken(Mistake("the argument '--tty' cannot be used with '--no-tty'"))
    stay = _stay(found, parsed)
    from execserver.box.commands import talking

    if "--detach" in parsed.options:
        command = _command(found, parsed, given[at + 1 :], tty="--tty" in parsed.options, pipe_stdin=False)
        return talking.run_detached(box_of(box, parsed), command, stay)
    from execserver.box.manner import both_ends

    tty = "--tty" in parsed.options or ("--no-tty" not in parsed.options and both_ends())
    command = _command(found, parsed, given[at + 1 :], tty=tty, pipe_stdin="--no-stdin" not in parsed.options)
    return talking.run(box_of(box, parsed), command, stay)


def _shell() -> int:
    found = program("shell", SHELL_HELP, "[BOX] [OPTIONS]")
    parsed = found.parse(sys.argv[1:])
    box = only_box(found, parsed)
    stay = _stay(found, parsed)
    command = _command(found, parsed, (), tty=True, pipe_stdin=True)
    from execserver.box.manner import both_ends

    if not both_ends():
        raise failure("a shell needs a terminal", "execserver run -- COMMAND")
    from execserver.box.commands import talking

    return talking.shell(box_of(box, parsed), command, stay)


def _command(found: Program, parsed: Parsed, argv: Sequence[str], *, tty: bool, pipe_stdin: bool) -> Command:
    from execserver.box.commands.running import Command
    from execserver.box.manner import Predict

    options = parsed.options
    return Command(
        argv,
        options.get("--cwd"),
        variables(found, parsed),
        options.get("--sandbox"),
        tty,
        pipe_stdin,
        limits=_limits(found, parsed),
        record=options.get("--record"),
        predict=Predict(options.get("--predict", "adaptive")),
    )


def _limits(found: Program, parsed: Parsed) -> dict[str, int]:
    if "--limit" not in parsed.options:
        return {}
    from execserver.limit_options import limits_of_command

    return limits_of_command(found, parsed.words)


def _stay(found: Program, parsed: Parsed) -> Stay:
    from execserver.box.commands.kept import is_process_name, milliseconds
    from execserver.box.commands.talking import Stay

    span, name = parsed.options.get("--keep"), parsed.options.get("--name")
    keep_ms = None if span is None else milliseconds(span)
    if span is not None and not keep_ms:
        raise found.mistaken(Mistake(f"invalid value '{span}' for '--keep <TIME>': 90s, 15m, 8h or 7d"))
    if name is not None and not is_process_name(name):
        text = f"invalid value '{name}' for '--name <NAME>': 1 to 64 letters, digits, `.`, `-` or `_`"
        raise found.mistaken(Mistake(text))
    return Stay(keep_ms, name)
