"""Regular expressions that the build compiles ahead are those that the modules ask for."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from tools.freeze.patterns import compile_ahead

SAMPLES = ("", "abcc", "Ab\n\u00e9\u00e8", "x-1_\0zz")


def ahead(text: str) -> str:
    """Return the text of a module with its expressions compiled ahead."""
    module = ast.parse(text)
    compile_ahead(module)
    return ast.unparse(module)


def matches(pattern: re.Pattern[Any], text: str | bytes) -> list[object]:
    return [(each.span(), each.groups(), each.groupdict(), each.lastgroup) for each in pattern.finditer(text)]


@pytest.mark.parametrize("name", ["re", "_re"])
@pytest.mark.parametrize(
    "words",
    [
        '""',
        '"a(?P<x>b)|(c)(?P<y>[^d-f]+)*?", re.I | re.A',
        'rb"\\x00[\\w]{2,300}(?!\\Z)", re.DOTALL',
        '"(?im)^[\u00e0-\u00fc]+$" "|more"',
        '"(a)(?:b)(?P<last>(c))\\\\2", re.VERBOSE',
    ],
)
def test_an_expression_is_the_same_without_being_read(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = eval(f"re.compile({words})")
    words = words.replace("re.", f"{name}.")
    text = ahead(
        f"import re as {name}\nx = {name}.compile({words})\nclass C:\n    y = {name}.compile({words})"
    )
    monkeypatch.setattr("re._parser.parse", None)
    re.purge()
    found: dict[str, object] = {}
    exec(text, found)
    made = found["x"]
    assert isinstance(made, re.Pattern)
    assert made == expected == vars(found["C"])["y"]
    assert (made.pattern, made.flags, made.groups) == (expected.pattern, expected.flags, expected.groups)
    for sample in SAMPLES if isinstance(expected.pattern, str) else [each.encode() for each in SAMPLES]:
        matches = [(each.groups(), each.groupdict(), each.lastgroup) for each in expected.finditer(sample)]
        assert [
            (each.groups(), each.groupdict(), each.lastgroup) for each in made.finditer(sample)
        ] == matches


@pytest.mark.parametrize(
    "text",
    [
        "import re\n\ndef f():\n    return re.compile('a')",
        "import re\nx = lambda: re.compile('a')",
        "import re\nx = re.compile(pattern)",
        "import re\nx = re.compile('a', flags)",
        "import re\nx = re.compile('a', flags=re.I)",
        "import re\nx = re.compile(f'{a}')",
        "import re\nx = other.compile('a')",
        "import regex as re\nx = re.compile('a')",
    ],
)
def test_other_calls_stay_as_they_are(text: str) -> None:
    assert ahead(text) == text
