"""`execserver network log`: where commands connected to, and what was refused them, from the audit log."""

from __future__ import annotations

import json
import sys

from execserver.arguments import Program, read_table
from execserver.audit.reading import NotIntact
from execserver.egress.machine_rules import cure
from execserver.leaving import failure, put, until_left
from execserver.protocol.errors import os_error_text
from execserver.verbs.audit import moment, printable, read_log
from execserver.verbs.usage import carry_out

HELP = """\
Show where commands connected to through the proxy of a server, and what was refused them.

Usage: execserver network log <DIR> [OPTIONS]

DIR is the audit log that `execserver --audit DIR` writes. A line has the time, the process, what was decided
and where to. What a process does over and over is told once, and again after ten times, a hundred and so on.

Options:
  --process <ID>            Only what this process did.
  --refused                 Only what was refused.
  --since <TIME>            Only what is newer: 90s, 15m, 8h or 7d ago.
  -f, --follow              Go on with what is recorded from now on.
  --json                    Print the records as they are, a line each.
  -h, --help                Print this text and exit.

Exits with 0, with 1 if the log cannot be read or was changed, and with 2 for wrong usage.
"""

_SCHEMES = {
    "http": "http://",
    "https_connect": "https://",
    "socks5_tcp": "socks5://",
    "socks5_udp": "socks5-udp://",
}


def main() -> int:
    """Do what the arguments say; return 0, 1 if the log cannot be read, 2 for wrong usage."""
    return until_left(_main)


def _main() -> int:
    try:
        return carry_out("execserver network", sys.argv[1:], {"log": _log}, HELP, " <DIR>")
    except NotIntact as error:
        raise failure(str(error)) from None
    except OSError as error:
        raise failure(f"{error.filename}: {os_error_text(error.errno or 0)}") from None


def _log(given: list[str]) -> int:
    program = Program(
        *("execserver network log", read_table(HELP), lambda: HELP),
        operands=("<DIR>",),
        usage="<DIR> [OPTIONS]",
    )
    parsed = program.parse(given)
    options = parsed.options
    since = moment(program, options["--since"]) if "--since" in options else ""
    for record in read_log(parsed.operands[0], follow="--follow" in options):
        if record["event"] != "network" or str(record.get("at", "")) < since:
            continue
        if "--process" in options and record.get("process") != options["--process"]:
            continue
        if "--refused" in options and record.get("decision") == "allow":
            continue
        line = json.dumps(record) if "--json" in options else _line(record)
        put(f"{line}\n")
    return 0


def _line(record: dict[str, object]) -> str:
    """Return a record for people, without what a terminal would obey."""
    if record.get("others"):
        what = "further destinations"
    else:
        host = str(record.get("host", ""))
        shown = f"[{host}]" if ":" in host else host
        where = f"{_SCHEMES.get(str(record.get('protocol')), '')}{shown}:{record.get('port')}"
        why = "" if record.get("decision") == "allow" else f"  ({record.get('reason')})"
        if isinstance(rules := record.get("rules"), list):
            why += f"; {cure(map(str, rules))}"
        what = f"{record.get('decision')!s:<5}  {where}{why}"
    times = f"  {record['times']} times" if "times" in record else ""
    return printable(f"{record['at']}  {record.get('process')!s:<12}  {what}{times}")
