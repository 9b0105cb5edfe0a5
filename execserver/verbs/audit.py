"""`execserver audit`: whether an audit log is what the server wrote, and what it says."""

from __future__ import annotations

import json
import re
import sys
import time

from execserver import spans
from execserver.arguments import Mistake, Program, read_table
from execserver.audit.cast import cast
from execserver.audit.reading import NotIntact, records, verify
from execserver.audit.recording import NoRecording, read
from execserver.leaving import failure, put, until_left
from execserver.protocol.errors import os_error_text
from execserver.verbs.usage import carry_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

HELP = """\
Check the audit log that `execserver --audit DIR` writes, or show what it says.

Usage: execserver audit verify <DIR> [--head <SHA256>]
       execserver audit show <DIR> [--since <TIME>] [--session <ID>] [-f] [--json]
       execserver audit cast <DIR> <ID>

`verify` follows the chain of the log from its first record to its last, and prints the head. A log that was
changed is told with the file and line. That its end was cut off, or all of it written anew, only a head shows
that was kept elsewhere: ask a running server for it (`audit/head`, `audit_head()` in Python) or keep what
`verify` prints, and give it later.

`cast` prints the recording of a process as asciicast v3, for asciinema and its like. ID is that of the
process, whose newest recording counts, or the name that `show` tells.

Options:
  --head <SHA256>           A head of before, which must be in the log.
  --since <TIME>            Only what is newer: 90s, 15m, 8h or 7d ago.
  --session <ID>            Only what was done in this session.
  -f, --follow              Go on with what is recorded from now on.
  --json                    Print the records as they are, a line each.
  -h, --help                Print this text and exit.

Exits with 0 if the log is intact, with 1 if not, and with 2 for wrong usage.
"""

_HEAD = re.compile(r"[0-9a-f]{64}")
_LOOK_S = 0.3
_KNOWN = ("n", "at", "event", "prev", "session", "who")


def main() -> int:
    """Do what the arguments say; return 0 if the log is intact, 1 if not, 2 for wrong usage."""
    return until_left(_main)


def _main() -> int:
    actions = {"verify": _verify, "show": _show, "cast": _cast}
    try:
        return carry_out("execserver audit", sys.argv[1:], actions, HELP, " <DIR>")
    except (NotIntact, NoRecording) as error:
        raise failure(str(error)) from None
    except OSError as error:
        raise failure(f"{error.filename}: {os_error_text(error.errno or 0)}") from None


def _program(action: str) -> Program:
    return Program(
        *(f"execserver audit {action}", read_table(HELP), lambda: HELP),
        operands=("<DIR>",),
        usage="<DIR> [OPTIONS]",
    )


def _verify(given: list[str]) -> int:
    parsed = _program("verify").parse(given)
    head = parsed.options.get("--head")
    if head is not None and not _HEAD.fullmatch(head):
        raise failure(f"invalid head '{head}': expected 64 hexadecimal digits")
    verdict = verify(parsed.operands[0], head)
    begins = (
        "" if verdict.first == 1 else f" The log begins with record {verdict.first}: older files are gone."
    )
    torn = f" {verdict.torn} bytes of a torn line follow." if verdict.torn else ""
    sys.stdout.write(f"intact: {verdict.last} records, head {verdict.head}\n")
    if begins or torn:
        sys.stderr.write(f"{(begins + torn).strip()}\n")
    return 0


def _cast(given: list[str]) -> int:
    program = Program(
        "execserver audit cast",
        read_table(HELP),
        lambda: HELP,
        operands=("<DIR>", "<ID>"),
        usage="<DIR> <ID>",
    )
    for line in cast(*read(*program.parse(given).operands)):
        sys.stdout.write(f"{line}\n")
    return 0


def _show(given: list[str]) -> int:
    program = _program("show")
    parsed = program.parse(given)
    options = parsed.options
    since = moment(program, options["--since"]) if "--since" in options else ""
    for record in read_log(parsed.operands[0], follow="--follow" in options):
        if str(record.get("at", "")) < since:
            continue
        if "--session" in options and not _is_of(record, options["--session"]):
            continue
        line = json.dumps(record) if "--json" in options else _line(record)
        put(f"{line}\n")
    return 0


def read_log(folder: str, *, follow: bool) -> Iterator[dict[str, object]]:
    """Yield the records of a log, with `follow` also those that come later.  Raises NotIntact and OSError."""
    seen = 0
    while True:
        for record in records(folder):
            number = record["n"]
            if isinstance(number, int) and number > seen:
                seen = number
                yield record
        if not follow:
            return
        try:
            time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            return


def _is_of(record: dict[str, object], session: str) -> bool:
    shown = str(record.get("session", ""))
    return bool(shown) and session.startswith(shown)


def moment(program: Program, text: str) -> str:
    """Return the time that lies a span such as 15m back, as records have it.  Raises Leave."""
    span = spans.seconds(text)
    if span is None:
        raise program.mistaken(
            Mistake(f"invalid value '{text}' for '--since <TIME>': expected e.g. 90s, 15m, 8h or 7d", None)
        )
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - span))


def _line(record: dict[str, object]) -> str:
    """Return a record for people, without what a terminal would obey."""
    who = " ".join(str(record[name]) for name in ("session", "who") if record.get(name))
    rest = " ".join(f"{name}={_value(value)}" for name, value in record.items() if name not in _KNOWN)
    return printable(f"{record['at']}  {record['event']!s:<11}  {who:<8}  {rest}".rstrip())


def _value(value: object) -> str:
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) and " " in value else str(value)


def printable(text: str) -> str:
    """Return a text without what a terminal would obey."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
