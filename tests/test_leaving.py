"""How programs leave: what is printed where, and with which status."""

from __future__ import annotations

import os

import pytest

from execserver.leaving import Leave, failure, until_left, write


def leaving(leave: Leave) -> int:
    raise leave


def test_what_is_left_with_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert until_left(lambda: 7) == 7
    assert capfd.readouterr() == ("", "")
    assert until_left(lambda: leaving(Leave(0, stdout="help\n"))) == 0
    assert until_left(lambda: leaving(failure("no room", "make some"))) == 1
    assert capfd.readouterr() == ("help\n", "Error: no room\n  What to do: make some\n")


def test_bytes_that_are_no_text_are_printed_as_they_came(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert until_left(lambda: leaving(failure(os.fsdecode(b"\xff")))) == 1
    assert capfdbinary.readouterr().err == b"Error: \xff\n"


def test_a_reader_that_has_gone_is_no_failure() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    write(writing, "x" * 100_000)
    os.close(writing)
