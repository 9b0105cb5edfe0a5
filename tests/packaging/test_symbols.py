"""Files without what only debuggers read: they run, and nothing that is loaded has changed."""

from __future__ import annotations

import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from tools.freeze.elf import read_elf
from tools.freeze.symbols import emptied

SOURCE = """
#include <stdio.h>
static const char *a_function_that_nobody_exports(void) { return "run"; }
int main(void) { return puts(a_function_that_nobody_exports()) < 0; }
"""
NAME = b"a_function_that_nobody_exports"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program with symbols and debug sections."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    made = tmp_path / "program"
    command = [compiler, "-g", "-O0", "-x", "c", "-", "-o", str(made)]
    subprocess.run(command, input=SOURCE.encode(), check=True)
    return made


def test_a_program_runs_as_before_and_packs_to_less(program: Path) -> None:
    before = program.read_bytes()
    after = emptied(before)
    assert (NAME in before, NAME in after) == (True, False)
    assert len(after) == len(before)
    assert len(zlib.compress(after)) < len(zlib.compress(before)) * 0.8
    described = read_elf(program)
    program.write_bytes(after)
    assert read_elf(program) == described
    assert subprocess.run([program], capture_output=True, check=True).stdout == b"run\n"


def test_it_is_the_same_the_second_time(program: Path) -> None:
    once = emptied(program.read_bytes())
    assert emptied(once) == once


def test_a_file_without_sections_stays_as_it_is(program: Path) -> None:
    head = bytearray(program.read_bytes())
    head[0x3C:0x3E] = b"\0\0"
    assert emptied(bytes(head)) == bytes(head)
