"""What was found in machines, read from their lines, and the page that shows it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import NamedTuple

from tests.support.source import ROOT

PAGE = ROOT / "docs" / "platforms.md"
WIDTH = 118  # of prose on the page
HEAD = ROOT / "tests" / "machines" / "page.md"  # what is said before the table
USERS = {"root": "root", "person": "user"}
CHECKS = ("self-test", "replay", "attacks", "architectures", "shell tool")
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
    """A machine on the page."""

    name: str
    architecture: str
    note: str
    found: Found


def not_run(why: str) -> Found:
    """Return what is known of a machine that could not be run."""
    return Found(why_not=why)


def read(lines: Sequence[str], seconds: float) -> Found:
    """Return what the lines of a machine say; checks that it did not come to have failed."""
    user, kernel, page_bytes = "", "", 0
    checks = {(name, check): ("no", "it did not come to that") for name in USERS for check in CHECKS}
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


def page(rows: Sequence[Row], day: datetime.date) -> str:
    """Return the page: what was tried when, a row for each machine, and what there is to say about some."""
    head = f"| system | kernel | {' | '.join(CHECKS)} | sandbox |"
    lines = [HEAD.read_text().replace("@DAY@", day.isoformat()), head, "|---" * (len(CHECKS) + 3) + "|"]
    lines += [_line(row) for row in rows]
    remarks = [f"- {_name(row)}: {text}." for row in rows for text in _remarks(row.found)]
    notes = [line for each in remarks for line in wrap(each, WIDTH, subsequent_indent="  ")]
    return "\n".join([*lines, *(["", "What is not `yes`:", "", *notes] if notes else [])]) + "\n"


def _name(row: Row) -> str:
    return f"{row.name}, {row.architecture}" + (f", {row.note}" if row.note else "")


def _line(row: Row) -> str:
    found = row.found
    if found.why_not:
        return f"| {_name(row)} | not run | {' | '.join('' for _ in CHECKS)} | |"
    cells = [_both([found.checks[user, check][0] for user in USERS]) for check in CHECKS]
    size = f", {found.page_bytes // 1024} KiB pages" if found.page_bytes > 4096 else ""
    sandbox = _both([found.sandboxes.get(user, "?") for user in USERS])
    return f"| {_name(row)} | {found.kernel}{size} | {' | '.join(cells)} | {sandbox} |"


def _both(results: Sequence[str]) -> str:
    return results[0] if len(set(results)) == 1 else " / ".join(results)


def _remarks(found: Found) -> list[str]:
    if found.why_not:
        return [f"not run, {found.why_not}"]
    return [
        f"{name} as {USERS[user]}: {reason}"
        for (user, name), (result, reason) in found.checks.items()
        if result != "yes"
    ]
