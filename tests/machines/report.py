"""What was found in machines, read from their lines, kept in a record, and the page that is made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

from tests.support.source import ROOT

PAGE = ROOT / "docs" / "platforms.md"
WIDTH = 118  # of prose on the page
_OWN = Path(__file__).parent
HEAD, CONDITIONS_HEAD = _OWN / "page.md", _OWN / "page_conditions.md"  # what is said before the tables
RECORD = _OWN / "found.json"
USERS = {"root": "root", "person": "user"}
CHECKS = ("first start", "self-test", "replay", "attacks", "architectures", "shell tool")
CONDITION_CHECKS = ("first start", "self-test", "replay", "attacks")
CONDITION = "condition"  # in the place of a note: no machine, but this kernel with something taken away
POLICY = "workspace-write"  # the line of `doctor` that says what enforces it


class Found(NamedTuple):
    """What one machine said; `why_not` if it could not be run.

    `checks` has a result for each user and check: `yes`, `no` or `-` for what says nothing there, with the
    reason behind it.
    """

    kernel: str = ""
    page_bytes: int = 0
    checks: Mapping[tuple[str, str], tuple[str, str]] = {}
    sandboxes: Mapping[str, str] = {}
    seconds: float = 0.0
    why_not: str = ""

    @property
    def failures(self) -> list[str]:
        """What did not do what it should, for people."""
        return [
            f"{name} as {USERS[user]}: {reason}"
            for (user, name), (result, reason) in self.checks.items()
            if result == "no"
        ]


class Row(NamedTuple):
    """A machine or a condition on the page, and the day (ISO 8601) it was tried."""

    name: str
    architecture: str
    note: str
    day: str
    found: Found


Key = tuple[str, str, str]


def key(row: Row) -> Key:
    """Return what tells a row from others; a condition is made on whatever there is."""
    return (row.name, "" if row.note == CONDITION else row.architecture, row.note)


def not_run(why: str) -> Found:
    """Return what is known of a machine that could not be run."""
    return Found(why_not=why)


def read(lines: Sequence[str], seconds: float, wanted: Sequence[str] = CHECKS) -> Found:
    """Return what the lines of a machine say; checks that it did not come to have failed."""
    user, kernel, page_bytes = "", "", 0
    checks = {(name, check): ("no", "it did not come to that") for name in USERS for check in wanted}
    sandboxes: dict[str, str] = {}
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "kernel":
            kernel = rest
        elif word == "pages":
            page_bytes = int(rest)
        elif word == "user":
            user = rest
        elif word == "doctor" and POLICY in rest:
            works, _, what = rest.strip().partition(POLICY)
            sandboxes[user] = what.strip() if works.startswith("yes") else "refused"
        else:
            for start, result in (("ok ", "yes"), ("no ", "no"), ("left out ", "-")):
                name, _, reason = line.removeprefix(start).partition(": ")
                if line.startswith(start) and (user, name) in checks:
                    checks[user, name] = result, reason
    return Found(kernel, page_bytes, checks, sandboxes, seconds)


def load(record: Path = RECORD) -> list[Row]:
    """Return what earlier runs have found."""
    return [_unpacked(each) for each in json.loads(record.read_text())] if record.exists() else []


def keep(fresh: Row, wanted: Sequence[Key], record: Path = RECORD) -> list[Row]:
    """Put a row into the record, and take out what is not wanted any more; return all rows in order."""
    known = {key(row): row for row in [*load(record), fresh]}
    rows = [known[each] for each in wanted if each in known]
    record.write_text(json.dumps([_packed(row) for row in rows], indent=1) + "\n")
    return rows


def _packed(row: Row) -> dict[str, object]:
    found = row.found
    checks = [[*which, *result] for which, result in found.checks.items()]
    return {**row._asdict(), "found": {**found._asdict(), "checks": checks, "seconds": round(found.seconds)}}


def _unpacked(kept: dict[str, object]) -> Row:
    found = kept["found"]
    assert isinstance(found, dict)
    checks = {(user, check): (result, reason) for user, check, result, reason in found["checks"]}
    return Row(**{**kept, "found": Found(**{**found, "checks": checks})})  # type: ignore[arg-type]


def page(rows: Sequence[Row]) -> str:
    """Return the page: a row for each machine and each condition, and what there is to say about some."""
    conditions = [row for row in rows if row.note == CONDITION]
    machines = [row for row in rows if row.note != CONDITION]
    lines = [*_part(HEAD, CHECKS, machines), "", *_part(CONDITIONS_HEAD, CONDITION_CHECKS, conditions)]
    return "\n".join(lines) + "\n"


def _part(head: Path, checks: Sequence[str], rows: Sequence[Row]) -> list[str]:
    columns = f"| system | kernel | {' | '.join(checks)} | sandbox | day |"
    lines = [head.read_text(), columns, "|---" * (len(checks) + 4) + "|"]
    lines += [_line(row, checks) for row in rows]
    remarks = [f"- {_name(row)}: {text}." for row in rows for text in _remarks(row.found)]
    notes = [line for each in remarks for line in wrap(each, WIDTH, subsequent_indent="  ")]
    return [*lines, *(["", "What is not `yes`:", "", *notes] if notes else [])]


def _name(row: Row) -> str:
    if row.note == CONDITION:
        return row.name
    return f"{row.name}, {row.architecture}" + (f", {row.note}" if row.note else "")


def _line(row: Row, checks: Sequence[str]) -> str:
    found = row.found
    if found.why_not:
        return f"| {_name(row)} | not run | {' | '.join('' for _ in checks)} | | {row.day} |"
    cells = [_both([found.checks.get((user, check), ("?", ""))[0] for user in USERS]) for check in checks]
    size = f", {found.page_bytes // 1024} KiB pages" if found.page_bytes > 4096 else ""
    machine = f", {row.architecture}" if row.note == CONDITION else ""
    sandbox = _both([found.sandboxes.get(user, "?") for user in USERS])
    return f"| {_name(row)} | {found.kernel}{machine}{size} | {' | '.join(cells)} | {sandbox} | {row.day} |"


def _both(results: Sequence[str]) -> str:
    return results[0] if len(set(results)) == 1 else " / ".join(results)


def _remarks(found: Found) -> list[str]:
    if found.why_not:
        return [f"not run, {found.why_not}"]
    return [
        f"{name} as {USERS[user]}: {reason.rstrip('.')}"
        for (user, name), (result, reason) in found.checks.items()
        if result != "yes"
    ]
