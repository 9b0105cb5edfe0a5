"""Where the output of a command in a shell that goes on ends: with a real bash."""

from __future__ import annotations

import subprocess

from execserver_adapters._marked_output import Marked, Said


def said(command: str, *, limit: int = 10_000, piece: int = 65536) -> Said:
    """Return what a shell says to a command, its output fed in pieces of some bytes."""
    marked = Marked(limit)
    done = subprocess.run(
        ["bash", "--noprofile", "--norc"], input=marked.line(command), capture_output=True, timeout=30
    )
    data = done.stdout
    ended = False
    for at in range(0, len(data), piece):
        ended |= marked.add(data[at : at + piece])
    return marked.said() if ended else marked.said(done.returncode)


def test_output_of_both_streams_and_the_status() -> None:
    assert said("echo out; echo err >&2; (exit 3)") == Said("out\nerr", 3)


def test_a_mark_that_comes_byte_by_byte_is_found() -> None:
    assert said("printf 'no newline'", piece=1) == Said("no newline", 0)


def test_an_open_quote_is_an_error_of_the_command_and_not_of_the_shell() -> None:
    answer = said("echo 'never closed")
    assert answer.status != 0
    assert "unexpected EOF" in answer.text


def test_a_bracket_does_not_end_the_command_early() -> None:
    answer = said("echo one; }; echo two")
    assert "syntax error" in answer.text
    assert answer.status != 0


def test_a_command_that_reads_its_input_gets_none() -> None:
    assert said("cat; echo after") == Said("after", 0)


def test_a_shell_that_ends_tells_its_own_status() -> None:
    assert said("echo bye; exit 7") == Said("bye", 7)


def test_of_much_output_the_beginning_and_the_end_stay() -> None:
    answer = said("seq 1 100000", limit=2000)
    assert answer.text.startswith("1\n2\n")
    assert answer.text.endswith("99999\n100000")
    assert "bytes left out" in answer.text
    assert len(answer.text) < 2300
    assert answer.status == 0


def test_colours_of_terminals_are_left_out() -> None:
    assert said(r"printf '\033[31mred\033[0m\n'") == Said("red", 0)


def test_a_line_that_looks_like_a_mark_ends_nothing() -> None:
    assert said("echo; echo --execserver-00000000000000000000000000000000-0; echo after").text.endswith(
        "after"
    )


def test_a_shell_that_repeats_what_it_is_told_is_no_earlier_end() -> None:
    answer = said("set -x; echo real")
    assert "real" in answer.text
    assert answer.status == 0
