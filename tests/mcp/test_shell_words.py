"""How the examples of rules files are split."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.mcp.quoting import command_line
from execserver.mcp.shell_words import BadShellSyntax, split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \t\n", []),
        ("a b", ["a", "b"]),
        ("a 'b c' \"d e\"", ["a", "b c", "d e"]),
        ("a'b'\"c\"d", ["abcd"]),
        (r"a\ b \'", ["a b", "'"]),
        (r'"a\"b\$\c"', [r'a"b$\c']),
        ("a\\\nb \\\n c", ["ab", "c"]),
        ("'' \"\"", ["", ""]),
        ("a # b\nc", ["a", "c"]),
        ("# b", []),
        ("a#b", ["a#b"]),
        ("$x *", ["$x", "*"]),
        ("a\rb", ["a\rb"]),
    ],
)
def test_words_are_those_of_a_shell(text: str, words: list[str]) -> None:
    assert split_words(text) == words


@pytest.mark.parametrize("text", ["'a", '"a', '"a\\"', "a\\", "a 'b' \"c"])
def test_what_is_left_open_is_refused(text: str) -> None:
    with pytest.raises(BadShellSyntax):
        split_words(text)


@given(st.lists(st.text()))
def test_quoted_words_come_back(words: list[str]) -> None:
    assert split_words(" ".join(map(shlex.quote, words))) == words
    assert split_words(command_line("x", words)) == ["x", *words]
