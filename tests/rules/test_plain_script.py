"""Scripts of plain words."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.rules.plain_script import plain_commands


@pytest.mark.parametrize(
    ("script", "commands"),
    [
        ("", []),
        ("\n \n", []),
        ("a", [["a"]]),
        ("a b && c || d | e; f\ng", [["a", "b"], ["c"], ["d"], ["e"], ["f"], ["g"]]),
        ("a&&b", [["a"], ["b"]]),
        ("a |\n\n b;", [["a"], ["b"]]),
        ("a 'b $c' \"d e\"", [["a", "b $c", "d e"]]),
        (r"a \$b c\;d", [["a", "$b", "c;d"]]),
        ('a "b\\"c\\\\d\\e\\\nf"', [["a", 'b"c\\d\\ef']]),
        ("a b\\\nc \\\n d", [["a", "bc", "d"]]),
        ("a '' \"\"", [["a", "", ""]]),
        ("a if X=1", [["a", "if", "X=1"]]),
        ("'if' a", [["if", "a"]]),
        ("a#b *?[c] ~ {d,e}", [["a#b", "*?[c]", "~", "{d,e}"]]),
        ("a-b=b=c.d/e f", [["a-b=b=c.d/e", "f"]]),
    ],
)
def test_plain_commands_are_taken_apart(script: str, commands: list[list[str]]) -> None:
    assert plain_commands(script) == commands


@pytest.mark.parametrize(
    "script",
    [
        *("a $b", "a `b`", 'a "$b"', 'a "`b`"', "a (b)", "(a)", "a > b", "a < b", "a & b", "a &", "a |& b"),
        *("a # b", "# a", "a;; b", "; a", "a && && b", "&& a", "a &&", "a |", "a || ;"),
        *(
            "a 'b",
            'a "b',
            'a "b\\',
            "X=1 a",
            "X+=1",
            "! a",
            "{ a; }",
            "if a; then b; fi",
            "[ a ]",
            "export a",
        ),
    ],
)
def test_nothing_is_said_about_other_scripts(script: str) -> None:
    assert plain_commands(script) is None


@given(st.lists(st.lists(st.text(), min_size=1), min_size=1))
def test_quoted_words_come_back(commands: list[list[str]]) -> None:
    # A quoted first word is no keyword.
    script = " && ".join(" ".join(f"''{shlex.quote(word)}" for word in command) for command in commands)
    assert plain_commands(script) == commands


@given(st.text(alphabet="ab'\"\\ \n;|&#=$x"))
def test_any_text_is_read_to_its_end(script: str) -> None:
    commands = plain_commands(script)
    assert commands is None or all(commands)
