from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from execserver.zygote import lookup
from execserver.zygote.lookup import (
    LookupRefused,
    env_value,
    is_directory,
    passwd_entry,
    pipe_candidates,
    terminal_program,
)


@pytest.fixture
def folder(tmp_path: Path) -> bytes:
    """d1/prog is a folder, d2/prog is not executable, d3/prog is a program, and so is ./x."""
    (tmp_path / "d1" / "prog").mkdir(parents=True)
    for name, mode in (("d2/prog", 0o644), ("d3/prog", 0o755), ("x", 0o755)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(mode)
    return os.fsencode(tmp_path)


def refused(program: bytes, cwd: bytes, path: bytes | None) -> tuple[int, int, tuple[bytes, ...]]:
    with pytest.raises(LookupRefused) as caught:
        terminal_program(program, cwd, path)
    return caught.value.reason, caught.value.errno, caught.value.details


def test_the_first_entry_of_a_name_counts() -> None:
    assert env_value([b"A=1", b"PATHX=2", b"PATH=/a=b", b"PATH=/c"], b"PATH") == b"/a=b"
    assert env_value([b"A=1"], b"PATH") is None
    assert env_value([b"PATH="], b"PATH") == b""


def test_a_name_with_a_slash_is_not_searched() -> None:
    assert pipe_candidates(b"./x", b"/bin") == [b"./x"]
    assert pipe_candidates(b"/bin/x", None) == [b"/bin/x"]


def test_a_bare_name_is_searched_in_path() -> None:
    assert pipe_candidates(b"x", b"/a:b:.") == [b"/a/x", b"b/x", b"./x"]


def test_without_path_the_default_path_is_searched() -> None:
    assert pipe_candidates(b"x", None) == [b"/usr/local/bin/x", b"/bin/x", b"/usr/bin/x"]


def test_an_empty_element_is_the_working_folder() -> None:
    assert pipe_candidates(b"x", b"") == [b"x"]
    assert pipe_candidates(b"x", b":/a:") == [b"x", b"/a/x", b"x"]


def test_an_element_longer_than_any_path_is_skipped() -> None:
    assert pipe_candidates(b"x", b"/" + b"a" * 4096 + b":/b") == [b"/b/x"]


def test_a_name_longer_than_any_file_name_is_refused() -> None:
    with pytest.raises(OSError, match="too long") as caught:
        pipe_candidates(b"a" * 256, b"/bin")
    assert caught.value.errno == errno.ENAMETOOLONG


def test_a_terminal_program_is_found_in_path(folder: bytes) -> None:
    path = folder + b"/d1:" + folder + b"/d2:" + folder + b"/d3"
    assert terminal_program(b"prog", b"/", path) == folder + b"/d3/prog"


@pytest.mark.parametrize(
    ("path", "found"), [(b"", b"/x"), (b".", b"/./x"), (b"/nope:", b"/x"), (b"d3/..", b"/d3/../x")]
)
def test_a_relative_element_starts_at_the_cwd(folder: bytes, path: bytes, found: bytes) -> None:
    assert terminal_program(b"x", folder, path) == folder + found


def test_an_explicitly_relative_program_is_joined_to_the_cwd(folder: bytes) -> None:
    assert terminal_program(b"./x", folder, None) == folder + b"/./x"
    assert terminal_program(b"../x", folder + b"/d1", None) == folder + b"/d1/../x"


def test_another_relative_program_is_searched_in_path(folder: bytes) -> None:
    assert terminal_program(b"d3/prog", b"/", folder) == folder + b"/d3/prog"
    assert refused(b"d3/prog", folder, b"/bin")[0] == lookup.NOT_IN_PATH


def test_unusable_candidates_are_told(folder: bytes) -> None:
    path = folder + b"/d1:" + folder + b"/d2"
    notes = (b"d" + folder + b"/d1/prog", b"x" + folder + b"/d2/prog")
    assert refused(b"prog", b"/", path) == (lookup.NOT_IN_PATH, errno.ENOENT, (b"prog", path, *notes))


def test_an_empty_name_finds_folders_only() -> None:
    assert refused(b"", b"/", b"/usr:/bin") == (
        lookup.NOT_IN_PATH,
        errno.ENOENT,
        (b"", b"/usr:/bin", b"d/usr/", b"d/bin/"),
    )


def test_without_path_a_bare_name_is_refused() -> None:
    assert refused(b"sh", b"/", None) == (lookup.NO_PATH, errno.ENOENT, (b"sh",))


@pytest.mark.parametrize(
    ("name", "reason", "number"),
    [
        (b"/nope", lookup.MISSING, errno.ENOENT),
        (b"/x/y", lookup.MISSING, errno.ENOTDIR),
        (b"/" + b"a" * 300, lookup.MISSING, errno.ENAMETOOLONG),
        (b"/d2/prog", lookup.NOT_EXECUTABLE, errno.EACCES),
        (b"/d1", lookup.IS_DIRECTORY, errno.EISDIR),
    ],
)
def test_why_an_absolute_program_is_refused(folder: bytes, name: bytes, reason: int, number: int) -> None:
    assert refused(folder + name, b"/", b"/bin") == (reason, number, (folder + name,))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (b"./nope", lookup.MISSING_RELATIVE),
        (b"./d2/prog", lookup.NOT_EXECUTABLE_RELATIVE),
        (b"./d1", lookup.IS_DIRECTORY),
        (b"..", lookup.IS_DIRECTORY),
    ],
)
def test_why_a_relative_program_is_refused(folder: bytes, name: bytes, reason: int) -> None:
    assert refused(name, folder, b"/bin")[::2] == (reason, (folder + b"/" + name,))


def test_what_is_a_directory(folder: bytes) -> None:
    assert is_directory(folder)
    assert not is_directory(folder + b"/x")
    assert not is_directory(folder + b"/nope")
    assert not is_directory(b"nul\0byte")


def test_home_and_shell_come_from_the_table() -> None:
    table = b"root:x:0:0:root:/root:/bin/bash\nbroken\nuser:x:1000:1000::/home/user:\n"
    assert passwd_entry(table, 0) == (b"/root", b"/bin/bash")
    assert passwd_entry(table, 1000) == (b"/home/user", b"/bin/sh")
    assert passwd_entry(table, 4242) == (b"/", b"/bin/sh")
