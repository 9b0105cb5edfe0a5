"""How commands are written in questions: the recorded cases, and that a shell reads the same words."""

from __future__ import annotations

import re
import shlex
import subprocess
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execserver.mcp.quoting import (
    LINE_CHARACTERS,
    WORD_CHARACTERS,
    command_line,
    quote,
    quote_cut,
    quote_visibly,
    visible_line,
)

RECORDED = {
    "ask": "ask",
    "a b": "'a b'",
    "$x": "'$x'",
    "a\tb\nc": "'a\tb\nc'",
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


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("a\tb\nc", r"$'a\tb\nc'"),
        ("\x1b[2J\r\x7f\x01", r"$'\e[2J\r\177\001'"),
        ("`", r"$'\140'"),
        ("it's\\\n", r"$'it\'s\\\n'"),
        ("\x85\xa0\xad", r"$'\u0085\u00a0\u00ad'"),
        ("\udcff\udc80x", r"$'\377\200x'"),
        *((chr(mark) + "x", rf"$'\u{mark:04x}x'") for mark in range(0x202A, 0x202F)),
        *((chr(mark) + "x", rf"$'\u{mark:04x}x'") for mark in range(0x2066, 0x206A)),
        *((f"a{mark}b", rf"$'a\u{ord(mark):04x}b'") for mark in "\u200e\u200f\u061c\u200b\u200d\u2060\ufeff"),
        *((f"a{mark}b", rf"$'a\u{ord(mark):04x}b'") for mark in "\u2028\u2029\u3000\u3164\u115f\u2800\ufe0f"),
        ("\U000e0041", r"$'\U000e0041'"),
        ("\ue000\u0378", r"$'\ue000\u0378'"),
        ("rm \u05d0 /\u0627", r"$'rm \u05d0 /\u0627'"),
        ("\u0301x", r"$'\u0301x'"),
        ("/\u0338x", r"$'/\u0338x'"),
        ("a\u20dd", r"$'a\u20dd'"),
        ("e\u0301\u0323", "'e\u0301\u0323'"),
        ("e\u0301\u0323\u0300", "$'e\u0301\u0323\\u0300'"),
        ("日本 жук αβγ", "'日本 жук αβγ'"),
        ("\U0001f44d", "'\U0001f44d'"),
    ],
)
def test_what_is_not_seen_as_what_it_is_stands_escaped(word: str, quoted: str) -> None:
    assert quote_visibly(word) == quoted
    assert visible_line(word, [word]) == f"{quoted} {quoted}"


def test_what_is_too_long_is_cut_in_the_middle_and_says_so() -> None:
    shown = quote_cut("h" * 1500 + "m" * 98_000 + " tail" * 100)
    assert shown == "h" * 1500 + "[... 98000 characters ...]" + quote(" tail" * 100)
    assert quote_cut("x" * WORD_CHARACTERS) == "x" * WORD_CHARACTERS
    line = visible_line("/bin/x", ["first", *["m" * 99] * 10_000, "last"])
    assert re.fullmatch(
        r"/bin/x first( m{99})+ \[\.\.\. \d+ arguments with \d+ characters \.\.\.\]( m{99})+ last", line
    )
    assert len(line) < LINE_CHARACTERS + 200
    left, size = map(int, re.findall(r"\d+", line))
    assert (left + line.count(" m"), size) == (10_000, 99 * left)


def test_no_word_can_say_that_something_was_cut() -> None:
    assert quote_visibly("[... 5 characters ...]") == "'[... 5 characters ...]'"
    assert visible_line("/x", ["[...", "5", "characters", "...]"]) == "/x '[...' 5 characters ...]"


@pytest.mark.parametrize("word", ["\U000e0041" * 100_000, "\u0301" * 100_000, "`" * 3_000])
def test_escapes_are_bounded_too(word: str) -> None:
    assert len(quote_cut(word)) < 2 * WORD_CHARACTERS + 200
    assert len(visible_line("/x", [word] * 1_000)) < LINE_CHARACTERS + 4 * WORD_CHARACTERS + 500


@given(st.text(max_size=30))
def test_a_posix_shell_reads_the_word_back(word: str) -> None:
    assert shlex.split(quote(word)) == [word]


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=50))
@settings(max_examples=20, deadline=None)
def test_bash_reads_any_words_back(words: list[str]) -> None:
    script = f"printf '%s\\0' {' '.join(map(quote_visibly, words))}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, timeout=30, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    assert done.stdout.decode().split("\0")[:-1] == (words or [""])


@given(st.text(st.characters()))
def test_nothing_shown_is_unseen_or_moves_what_is_seen(word: str) -> None:
    shown = quote_visibly(word)
    assert shown.isprintable()
    assert "`" not in shown
    assert not {unicodedata.bidirectional(character) for character in shown} & {"R", "AL", "AN", "RLO", "RLE"}


def test_bash_reads_the_words_back() -> None:
    words = [*RECORDED, "'^", "!!", "~", "a'b\"c`d$e\\f!g^h", "{a,b}", "#", "[x]", "&;|<>()"]
    script = f"printf '%s\\0' {' '.join(map(quote, words))}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=30, check=True)
    assert done.stdout.decode().split("\0")[:-1] == words
