"""Which files may take a server's place, and the words they are started with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from execserver.handover.program import BadProgram, Program
from execserver.own_start import OwnStart

FROZEN = OwnStart("/opt/execserver", ["execserver"], ["--listen", "ws://127.0.0.1:0"], 5)
SOURCE = OwnStart("/usr/bin/python3", ["python3", "-m", "execserver"], ["--metrics", "x"], None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("#!/bin/true\n")
    path.chmod(0o755)
    return path


def opened(path: Path, own: OwnStart = FROZEN) -> Program:
    return Program.given(os.open(path, os.O_RDONLY), str(path), own)


def why_not(path: Path) -> str:
    with pytest.raises(BadProgram) as caught:
        opened(path)
    return str(caught.value)


def test_one_file_is_called_as_this_program_was(file: Path) -> None:
    program = opened(file)
    assert program.words == ["execserver", "--listen", "ws://127.0.0.1:0"]
    asking = ["execserver", "--execserver-can-resume", "3", "--listen", "ws://127.0.0.1:0"]
    assert program.asking(3) == asking
    program.close()


def test_a_file_in_the_place_of_the_source_gets_the_servers_arguments_only(file: Path) -> None:
    program = opened(file, SOURCE)
    assert program.words == [str(file), "--metrics", "x"]
    program.close()


def test_the_own_start_is_repeated_word_for_word(file: Path) -> None:
    program = Program.own(SOURCE._replace(file=str(file)))
    assert program.words == ["python3", "-m", "execserver", "--metrics", "x"]
    assert program.asking(1)[:5] == ["python3", "-m", "execserver", "--execserver-can-resume", "1"]
    program.close()
    with pytest.raises(BadProgram, match="/missing cannot be read: No such file"):
        Program.own(FROZEN._replace(file="/missing"))


def test_files_that_could_be_anybodys_are_refused_and_closed(file: Path, tmp_path: Path) -> None:
    for mode, reason in ((0o775, "by others"), (0o757, "by others"), (0o655, "not executable")):
        if mode == 0o655 and not os.geteuid():
            continue  # to root every file with any such bit is
        file.chmod(mode)
        assert reason in why_not(file)
    file.chmod(0o644)
    assert "not executable" in why_not(file)
    assert "is no file" in why_not(tmp_path)


def test_a_change_of_the_file_is_noticed(file: Path) -> None:
    program = opened(file)
    program.check_again()
    with open(file, "a") as writer:
        writer.write("#")
    with pytest.raises(BadProgram, match="was changed"):
        program.check_again()
    program.close()


def test_an_exec_that_fails_leaves_the_descriptor_closed_for_children(file: Path) -> None:
    file.write_text("#!/missing\n")
    program = opened(file)
    with pytest.raises(FileNotFoundError):
        program.execute({})
    assert not os.get_inheritable(program.fd)
    program.close()
