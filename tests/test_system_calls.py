"""The page about system calls names each of them once, under the heading that the filters bear out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from execserver.sandbox.kernel.seccomp_numbers import NUMBERS
from execserver.sandbox.kernel.seccomp_table import (
    ABSENT,
    ALWAYS,
    COMMON,
    OPEN,
    PROXY_ROUTED,
    RESTRICTED,
    WITHOUT_NAMESPACES,
)
from tests.support.source import ROOT

PAGE = (ROOT / "docs/system-calls.md").read_text("utf-8")
HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
EVERY = "Refused to every sandboxed command"
BY_ARGUMENT = "Refused by argument to every sandboxed command"
OFFLINE = "Refused with the network off"
LANDLOCK = "Refused under Landlock, where there are no namespaces"


def named(heading: str) -> list[str]:
    """Return the calls of a section: of tables the first column counts, and running lists whole."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith(("| `", "`"))]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def headings() -> list[str]:
    return re.findall(r"^## (.+)$", PAGE, re.MULTILINE)


def test_each_call_is_named_once() -> None:
    every = [name for heading in headings() for name in named(heading)]
    assert {name for name in every if every.count(name) > 1} == set()
    assert set(NUMBERS["x86_64"]) <= set(every)


def test_what_is_refused_is_said_so() -> None:
    assert {name for name, condition, _ in COMMON if condition in (ALWAYS, ABSENT)} == set(named(EVERY))
    by_argument = {name for rules in (COMMON, OPEN) for name, condition, _ in rules if condition != ALWAYS}
    assert by_argument - set(named(EVERY)) == set(named(BY_ARGUMENT))
    offline = {name for rules in (RESTRICTED, PROXY_ROUTED) for name, _, _ in rules}
    assert offline - set(named(EVERY)) - set(named(BY_ARGUMENT)) == set(named(OFFLINE))
    landlock = {name for name, _, _ in WITHOUT_NAMESPACES}
    assert landlock - set(named(BY_ARGUMENT)) - set(named(OFFLINE)) == set(named(LANDLOCK))


def test_every_call_of_this_machines_headers_was_judged() -> None:
    if not HEADER.exists():
        pytest.skip(f"there is no {HEADER} on this machine")
    known = set(re.findall(r"__NR_(\w+)", HEADER.read_text())) - {"syscalls"}
    assert known - {name for heading in headings() for name in named(heading)} == set()
