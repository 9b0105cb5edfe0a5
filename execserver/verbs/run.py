"""`execserver run` and `execserver shell`: a command, or a login shell, on a box, as if it were here."""

from __future__ import annotations

import os
import sys

from execserver.arguments import Mistake, Parsed, Program, read_table
from execserver.leaving import Leave, until_left

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.box.connecting import Box

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
  --cwd <DIR>               Where to run it; relative to the home on the box. Default: that home, without a
                            box the folder you are in.
  -e, --env <NAME=VALUE>    Set a variable there; NAME alone passes yours on. May be repeated.
  --sandbox <POLICY>        Confine it: read-only, or workspace-write, which may write below DIR and /tmp.
                            Both have no network. What cannot be enforced there is refused. Without a policy
                            the command may do what the box's user may.
  --token-file <FILE>       Token for the box, on one line. Else the boxes file has it, else EXECSERVER_TOKEN.
  -h, --help                Print this text and exit.

Without a terminal ^C, ^\\, SIGTERM and SIGHUP go to the command; a second SIGTERM ends this program, too. A
lost connection is resumed while the command goes on. Over ssh: and without a box it ends the command.

Exit status: that of the command; 128 and the signal's number if a signal ended it (on a terminal 1, by the
contract). 2 wrong usage, 126 it cannot be started, 127 there is no such program or folder, 141 nobody reads
the output, 255 the box cannot be reached, or was lost.
"""

SHELL_HELP = """\
Open the login shell of a box on this terminal.

Usage: execserver shell [BOX] [OPTIONS]

BOX is as for `execserver run`.

Options:
  --cwd <DIR>               Where it starts; relative to the home on the box. Default: that home.
  -e, --env <NAME=VALUE>    Set a variable there; NAME alone passes yours on. May be repeated.
  --sandbox <POLICY>        Confine the shell and all it starts: read-only or workspace-write.
  --token-file <FILE>       Token for the box, on one line. Else the boxes file has it, else EXECSERVER_TOKEN.
  -h, --help                Print this text and exit.

At the beginning of a line: ~. ends the session, ~? shows the keys, ~~ types one ~.
A lost connection is resumed; what you type meanwhile is not lost. SIGTERM and a closed terminal end the
session. The terminal is as before afterwards; after SIGKILL of this program `stty sane` restores it.

Exit status: that of the shell; 130 after ~., 128 and the signal's number after a signal, 255 when the box
cannot be reached or was lost.
"""

_REPEATABLE = frozenset({"--env"})
_CHOICES: dict[str, tuple[str, ...]] = {"--sandbox": ("read-only", "workspace-write", "danger-full-access")}
_USAGE = "[BOX] [OPTIONS] -- <COMMAND> [ARGS]..."
_INTERRUPTED = 130


def main() -> int:
    """Run a command; return its exit status."""
    return until_left(lambda: _interruptible(_run))


def shell() -> int:
    """Open a shell; return its exit status."""
    return until_left(lambda: _interruptible(_shell))


def _interruptible(work: Callable[[], int]) -> int:
    try:
        return work()
    except KeyboardInterrupt:
        return _INTERRUPTED


def _run() -> int:
    given = sys.argv[1:]
    program = _program("run", HELP, _USAGE)
    at = given.index("--") if "--" in given else len(given)
    parsed = program.parse(given[:at])
    box = _box(program, parsed, " (the command stands behind `--`)")
    if not given[at + 1 :]:
        raise program.mistaken(Mistake("a command is missing: write it behind `--`"))
    from execserver.box.terminal import both_ends

    options = parsed.options
    if "--tty" in options and "--no-tty" in options:
        raise program.mistaken(Mistake("the argument '--tty' cannot be used with '--no-tty'"))
    tty = "--tty" in options or ("--no-tty" not in options and both_ends())
    from execserver.box.running import Command

    command = Command(
        argv=given[at + 1 :],
        cwd=options.get("--cwd"),
        env=_env(program, parsed),
        sandbox=options.get("--sandbox"),
        tty=tty,
        pipe_stdin="--no-stdin" not in options,
    )
    from execserver.box.talking import run

    return run(_found(box, parsed), command)


def _shell() -> int:
    program = _program("shell", SHELL_HELP, "[BOX] [OPTIONS]")
    parsed = program.parse(sys.argv[1:])
    box = _box(program, parsed, "")
    from execserver.box.terminal import both_ends

    if not both_ends():
        raise Leave(1, stderr="Error: a shell needs a terminal\n  What to do: execserver run -- COMMAND\n")
    from execserver.box.running import Command

    command = Command(
        argv=(),
        cwd=parsed.options.get("--cwd"),
        env=_env(program, parsed),
        sandbox=parsed.options.get("--sandbox"),
        tty=True,
    )
    from execserver.box.talking import shell as talk

    return talk(_found(box, parsed), command)


def _program(name: str, help_text: str, usage: str) -> Program:
    table = read_table(help_text, _REPEATABLE, _CHOICES)
    return Program(f"execserver {name}", table, lambda: help_text, "", (), True, usage)


def _box(program: Program, parsed: Parsed, hint: str) -> str | None:
    if len(parsed.operands) > 1:
        raise program.mistaken(Mistake(f"unexpected argument '{parsed.operands[1]}' found{hint}"))
    return parsed.operands[0] if parsed.operands else None


def _env(program: Program, parsed: Parsed) -> dict[str, str]:
    found = {}
    for word in parsed.words:
        option, _, text = word.partition("=")
        if option == "--env":
            name, equals, value = text.partition("=")
            if not name:
                raise program.mistaken(Mistake(f"invalid value '{text}' for '--env <NAME=VALUE>'"))
            if equals:
                found[name] = value
            elif name in os.environ:
                found[name] = os.environ[name]
    return found


def _found(name: str | None, parsed: Parsed) -> Box:
    from execserver.box.connecting import find
    from execserver.verbs.program import start_command

    return find(name, parsed.options.get("--token-file"), start_command())
