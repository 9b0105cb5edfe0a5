"""The stand-in's code and file: what the numbers say, and that nobody can change them."""

from __future__ import annotations

import fcntl
import mmap
import os
import platform
import signal
from pathlib import Path

import pytest

from execserver.zygote.supervision.stand_in.code import CODES, LISTINGS, assembled
from execserver.zygote.supervision.stand_in.file import StandInFile
from tests.support.assembler import machine_code

MACHINE = platform.machine()
needs_machine = pytest.mark.skipif(MACHINE not in CODES, reason=f"there is no code for {MACHINE}")


@pytest.mark.parametrize("machine", LISTINGS)
def test_the_numbers_are_what_the_words_say(machine: str, tmp_path: Path) -> None:
    code, labels = assembled(LISTINGS[machine])
    assert code == machine_code(machine, LISTINGS[machine], tmp_path)
    assert set(labels) == {"start", "name", "letter", "shut", "wait", "die", "leave"}
    assert CODES[machine].image.endswith(code)


@needs_machine
def test_a_file_cannot_be_changed_by_whoever_opens_it_again() -> None:
    file, other = StandInFile(CODES[MACHINE]), StandInFile(CODES[MACHINE])
    path = f"/proc/self/fd/{file.descriptor}"
    try:
        assert os.pread(file.descriptor, 1 << 16, 0) == CODES[MACHINE].image
        assert os.fstat(file.descriptor).st_mode & 0o777 == 0o555
        assert fcntl.fcntl(file.descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        try:
            again = os.open(path, os.O_RDWR)
        except PermissionError:
            again = -1  # only root passes the mode
        if again >= 0:
            with pytest.raises(PermissionError):
                os.pwrite(again, b"x", 0)
            with pytest.raises(PermissionError):
                os.ftruncate(again, 0)
            with pytest.raises(PermissionError):
                mmap.mmap(again, 10)
            os.close(again)
        assert file.is_at(file.descriptor)
        assert file.is_at(path.encode())
        assert not file.is_at(other.descriptor)
        assert not file.is_at(b"/no/such")
    finally:
        file.close()
        file.close()
        other.close()


@needs_machine
def test_by_itself_it_closes_everything_has_a_name_and_waits() -> None:
    file = StandInFile(CODES[MACHINE])
    reader, writer = os.pipe()
    pid = os.posix_spawn(
        f"/proc/self/fd/{file.descriptor}",
        ["/some/where/named", "x"],
        {},
        file_actions=[(os.POSIX_SPAWN_DUP2, writer, 9)],
    )
    os.close(writer)
    try:
        assert os.read(reader, 1) == b""  # its copy is closed
        assert Path(f"/proc/{pid}/comm").read_text() == "named\n"
        assert os.listdir(f"/proc/{pid}/fd") == []
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        file.close()
