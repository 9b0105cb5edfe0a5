"""How commands are written in questions: the recorded cases, and that a shell reads the same words."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.mcp.quoting import command_line, quote

RECORDED = {
    "ask": "ask",
    "a b": "'a b'",
    "$x": "'$x'",
    "": "''",
    "a=b": "'a=b'",
    "--x": "--x",
    "*.y": "'*.y'",
    "x,y": "'x,y'",
    "%s": "'%s'",
    "é": "'é'",
    "it's": '"it\'s"',
    "a\\b": '"a\\\\b"',
    "it's $x": "\"it's \"'$x'",
    "a^b": "a'^b'",
    "+-./:@]_": "+-./:@]_",
    "a\tb\nc": "'a\tb\nc'",
    'say "hi"': "'say \"hi\"'",
}


@pytest.mark.parametrize(("word", "quoted"), RECORDED.items())
def test_a_word_is_quoted_as_recorded(word: str, quoted: str) -> None:
    assert quote(word) == quoted


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("'$'", "\"'\"'$'\"'\""),
        ("^a", "'^a'"),
        ("^^", "'^''^'"),
        ("'^", "\"'\"'^'"),
        ("'\"\\", '"\'\\"\\\\"'),
        ("`'!", "'`'\"'\"'!'"),
    ],
)
def test_a_word_that_no_style_holds_is_cut_into_the_longest_pieces(word: str, quoted: str) -> None:
    assert quote(word) == quoted


def test_the_whole_recorded_command() -> None:
    arguments = ["a b", "$x", "", "a=b", "--x", "*.y"]
    assert command_line("/bin/true", arguments) == "/bin/true 'a b' '$x' '' 'a=b' --x '*.y'"
    assert command_line("/bin/true", []) == "/bin/true"


@given(st.text(max_size=30))
def test_a_posix_shell_reads_the_word_back(word: str) -> None:
    assert shlex.split(quote(word)) == [word]


def test_bash_reads_the_words_back() -> None:
    words = [*RECORDED, "'^", "!!", "~", "a'b\"c`d$e\\f!g^h", "{a,b}", "#", "[x]", "&;|<>()"]
    script = f"printf '%s\\0' {' '.join(map(quote, words))}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=30, check=True)
    assert done.stdout.decode().split("\0")[:-1] == words
