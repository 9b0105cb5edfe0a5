"""Every line of docs/compatibility.md is held by a test that exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from execserver.protocol.environment import Extensions
from tests.support.source import ROOT

PAGE = (ROOT / "docs" / "compatibility.md").read_text()
TEST_NAME = re.compile(r"`([\w/]*test_\w+\.py)::(\w+)`")
BORDER = re.compile(r"\|(?:-+\|)+")
GROUPS = (
    *(
        "Connections",
        "Configuration, skills and plugins",
        "Decoding",
        "Processes",
        "Files",
        "HTTP",
        "Remote mode",
        "Command line",
    ),
    "The shell tool",
)


def rows() -> list[list[str]]:
    """Return the cells of every row of every table, heads and borders left out."""
    lines = PAGE.splitlines()
    found = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not BORDER.fullmatch(line) and not BORDER.fullmatch(following):
            found.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return found


ROWS = rows()


@cache
def functions_of(file: str) -> frozenset[str]:
    """Return the names of the tests in a file."""
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def test_the_differences_are_grouped() -> None:
    part = PAGE.partition("## Deliberately different")[2].partition("\n## ")[0]
    assert re.findall(r"^### (.+)$", part, re.MULTILINE) == list(GROUPS)
    assert len(ROWS) > 80


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_row_names_tests_that_exist(row: list[str]) -> None:
    assert len(row) == 3
    assert all(row)
    named = TEST_NAME.findall(row[2])
    assert ", ".join(f"`{file}::{name}`" for file, name in named) == row[2]
    for file, name in named:
        assert Path(file).parts[0] != "reference"  # those do not play in every run
        assert name in functions_of(file)


def test_no_row_stands_twice() -> None:
    firsts = [(row[0], row[1]) for row in ROWS]
    assert len(set(firsts)) == len(firsts)


def test_every_extension_is_on_the_page() -> None:
    part = PAGE.partition("## Own additions")[2].partition("\n## ")[0]
    members = Extensions.__struct_encode_fields__
    assert re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) == list(members)
