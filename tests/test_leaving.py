"""How programs leave: what is printed where, and with which status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from execserver.leaving import Leave, failure, until_left, write
from tests.support.source import ROOT


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


PRINTING = """
import sys
from execserver.leaving import Leave, put, until_left
def leave(): raise Leave(0, stdout="text\\n")
def at_once(): return put("text\\n") or 0
def buffered(): return min(0, sys.stdout.write("text\\n"))
sys.exit(until_left({"leave": leave, "at once": at_once, "buffered": buffered}[sys.argv[1]]))
"""


@pytest.mark.parametrize("way", ["leave", "at once", "buffered"])
def test_output_that_cannot_be_written_is_a_failure(way: str, tmp_path: Path) -> None:
    def run(stdout: int) -> tuple[int, bytes]:
        words = [sys.executable, "-E", "-c", PRINTING, way]  # -E: buffered whatever the environment says
        done = subprocess.run(words, stdout=stdout, stderr=subprocess.PIPE, cwd=ROOT, check=False)
        return done.returncode, done.stderr

    with open("/dev/full", "wb") as full:
        told = b"Error: the output cannot be written: No space left on device\n"
        assert run(full.fileno()) == (1, told)
    reading, writing = os.pipe()
    os.close(reading)
    assert run(writing) == (141, b"")
    os.close(writing)
    with open(tmp_path / "file", "wb") as file:
        assert run(file.fileno()) == (0, b"")
    assert (tmp_path / "file").read_text() == "text\n"


def test_a_pipe_that_others_have_made_non_blocking_gets_all_of_a_text() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    words = [sys.executable, "-c", "from execserver.leaving import put; put('x' * 1_000_000)"]
    with subprocess.Popen(words, stdout=writing, cwd=ROOT) as putting, open(reading, "rb") as pipe:
        os.close(writing)
        assert pipe.read() == b"x" * 1_000_000
        assert putting.wait(30) == 0
