"""`execserver ps`, `attach`, `logs`, `wait` and `kill`: commands that go on without a connection."""

from __future__ import annotations

import signal
import sys
import time

from execserver.arguments import Mistake, Program
from execserver.leaving import put
from execserver.verbs.boxed import box_and_name, box_of, ended, only_box, program

_BOX = """\
BOX is as for `execserver run`; NAME is that of `run --name`, or the beginning of the id that `ps` shows.
"""
_TOKEN = """\
  --token-file <FILE>       Token for the box, on one line. Else the boxes file has it, else EXECSERVER_TOKEN.
  -h, --help                Print this text and exit.
"""
PS_HELP = f"""\
Show the commands on a box that go on without a connection, those of other terminals, and how they ended.

Usage: execserver ps [BOX] [OPTIONS]

Options:
  --json                    Print one JSON array, for programs.
{_TOKEN}
A command that has ended is shown until its time without a connection is over.
Exit status: 0; 2 wrong usage; 255 the box cannot be reached, or keeps no sessions.
"""
ATTACH_HELP = f"""\
Come back to a command on a box: its screen or its output as far as it is retained, and its keyboard.

Usage: execserver attach [BOX] <NAME> [OPTIONS]

{_BOX}
Options:
  --take                    Take the keyboard from whoever has it. Else you read along.
  --predict <WHEN>          Show what you type before the box has drawn it: adaptive, which is on slow links,
                            always or never [default: adaptive]
{_TOKEN}
On a terminal ~d and ~. at the beginning of a line leave, ~? helps. Leaving ends nothing.
Exit status: that of the command; 0 after ~d, 130 after ~. or ^C; 1 there is none of that name; 2 wrong usage;
255 the box cannot be reached, or was lost.
"""
LOGS_HELP = f"""\
Print what a command on a box has printed, as far as it is retained; stdout and stderr apart.

Usage: execserver logs [BOX] <NAME> [OPTIONS]

{_BOX}
Options:
  -f, --follow              Go on with what it prints, until it ends.
  --tail <N>                Only the last N lines of what it has printed so far.
  --since <TIME>            Only what it has printed since 90s, 15m, 8h or 7d ago, by the box's clock.
{_TOKEN}
Exit status: 0; 1 there is none of that name; 2 wrong usage; 255 the box cannot be reached, or was lost.
"""
WAIT_HELP = f"""\
Wait for the end of a command on a box.

Usage: execserver wait [BOX] <NAME> [OPTIONS]

{_BOX}
Options:
{_TOKEN}
Exit status: that of the command; 1 there is none of that name; 2 wrong usage; 255 the box cannot be reached,
or was lost.
"""
KILL_HELP = f"""\
Send a signal to a command on a box and to what it has started.

Usage: execserver kill [BOX] <NAME> [OPTIONS]

{_BOX}
Options:
  -s, --signal <SIGNAL>     HUP, INT, QUIT, TERM, KILL, USR1, USR2, CONT, STOP or WINCH, or the
                            number of one [default: TERM]
{_TOKEN}
Exit status: 0; 1 there is none of that name, or it has ended; 2 wrong usage; 255 the box cannot be reached.
"""
_SIGNALS = ("HUP", "INT", "QUIT", "TERM", "KILL", "USR1", "USR2", "CONT", "STOP", "WINCH")
_MAX_TAIL = 10_000_000
_USAGE = "[BOX] <NAME> [OPTIONS]"


def ps() -> int:
    """List the commands of a box; return the exit status."""
    return ended(_ps)


def attach() -> int:
    """Attach to a command; return its exit status."""
    return ended(_attach)


def logs() -> int:
    """Print the output of a command; return the exit status."""
    return ended(_logs)


def wait() -> int:
    """Wait for a command; return its exit status."""
    return ended(_wait)


def kill() -> int:
    """Send a signal to a command; return the exit status."""
    return ended(_kill)


def _ps() -> int:
    found = program("ps", PS_HELP, "[BOX] [OPTIONS]")
    parsed = found.parse(sys.argv[1:])
    box = only_box(found, parsed)
    from execserver.box.commands import listing

    put(listing.listed(box_of(box, parsed), as_json="--json" in parsed.options))
    return 0


def _attach() -> int:
    found = program("attach", ATTACH_HELP, _USAGE)
    parsed = found.parse(sys.argv[1:])
    box, name = box_and_name(found, parsed)
    from execserver.box.commands import watching
    from execserver.box.manner import Predict

    predict = Predict(parsed.options.get("--predict", "adaptive"))
    return watching.attach(box_of(box, parsed), name, take="--take" in parsed.options, predict=predict)


def _logs() -> int:
    found = program("logs", LOGS_HELP, _USAGE)
    parsed = found.parse(sys.argv[1:])
    box, name = box_and_name(found, parsed)
    given = parsed.options.get("--tail")
    if given is not None and not (given.isascii() and given.isdigit() and len(given) <= 8):
        raise found.mistaken(Mistake(f"invalid value '{given}' for '--tail <N>': a number of lines"))
    from execserver.box.commands.logs import logs as print_logs

    tail = None if given is None else min(int(given), _MAX_TAIL)
    follow, since_ms = "--follow" in parsed.options, _since(found, parsed.options.get("--since"))
    return print_logs(box_of(box, parsed), name, follow=follow, tail=tail, since_ms=since_ms)


def _since(found: Program, given: str | None) -> int | None:
    if given is None:
        return None
    from execserver.box.commands.kept import milliseconds

    span = milliseconds(given)
    if span is None:
        raise found.mistaken(Mistake(f"invalid value '{given}' for '--since <TIME>': 90s, 15m, 8h or 7d"))
    return max(0, round(time.time() * 1000) - span)


def _wait() -> int:
    found = program("wait", WAIT_HELP, _USAGE)
    parsed = found.parse(sys.argv[1:])
    box, name = box_and_name(found, parsed)
    from execserver.box.commands import watching

    return watching.wait(box_of(box, parsed), name)


def _kill() -> int:
    found = program("kill", KILL_HELP, _USAGE)
    parsed = found.parse(sys.argv[1:])
    box, name = box_and_name(found, parsed)
    given = parsed.options.get("--signal", "TERM")
    numbers = {str(int(getattr(signal, f"SIG{name}"))): name for name in _SIGNALS}
    signal_name = numbers.get(given, given.upper().removeprefix("SIG"))
    if signal_name not in _SIGNALS:
        text = f"invalid value '{given}' for '--signal <SIGNAL>'\n  [possible values: {', '.join(_SIGNALS)}]"
        raise found.mistaken(Mistake(text))
    from execserver.box.commands import watching

    return watching.kill(box_of(box, parsed), name, signal_name)
