from __future__ import annotations

import errno

import pytest

from execserver.protocol.errors import InternalError
from execserver.services.launch.start_request import (
    SpawnSpec,
    Watch,
    confinement_fields,
    environment_entries,
    start_error,
)
from execserver.zygote import lookup
from execserver.zygote.confinement import LANDLOCK, UNCONFINED, Confinement
from execserver.zygote.records import Failed
from execserver.zygote.stages import STAGE_CWD, STAGE_EXEC, STAGE_LOOKUP


def refusal(spec: SpawnSpec) -> str:
    with pytest.raises(InternalError) as caught:
        environment_entries(spec)
    return caught.value.message


def test_a_mapping_is_sorted_and_pairs_are_not() -> None:
    assert environment_entries(SpawnSpec([b"x"], {b"B": b"1", b"": b"2", b"A=": b"3"}, b"/")) == [
        b"=2",
        b"A==3",
        b"B=1",
    ]
    assert environment_entries(SpawnSpec([b"x"], [(b"B", b"1"), (b"A", b"2")], b"/")) == [b"B=1", b"A=2"]


@pytest.mark.parametrize(
    "spec",
    [
        SpawnSpec([b"\0"], {}, b"/"),
        SpawnSpec([b"x", b"a\0b"], {}, b"/"),
        SpawnSpec([b"x"], {b"A\0": b""}, b"/"),
        SpawnSpec([b"x"], {b"A": b"\0"}, b"/"),
        SpawnSpec([b"x"], {}, b"/", arg0=b"\0"),
        SpawnSpec([b"x"], {}, b"/\0"),
    ],
    ids=repr,
)
def test_a_nul_byte_anywhere_is_refused(spec: SpawnSpec) -> None:
    assert refusal(spec) == "nul byte found in provided data"


def test_an_empty_program_is_refused_first() -> None:
    assert refusal(SpawnSpec([b"", b"\0"], {}, b"/")) == "missing program for pipe spawn"
    assert refusal(SpawnSpec([b""], {}, b"/", arg0=b"sh", tty=True)) == "missing program for PTY spawn"


def test_more_than_any_exec_takes_is_refused() -> None:
    assert refusal(SpawnSpec([b"x"], {b"A": b"x" * 2**23}, b"/")) == "Argument list too long (os error 7)"


def test_failures_of_cwd_and_exec_are_the_systems_own() -> None:
    assert start_error(Failed(1, STAGE_CWD, errno.ENOTDIR)).message == "Not a directory (os error 20)"
    assert start_error(Failed(1, STAGE_EXEC, errno.ENOEXEC)).message == "Exec format error (os error 8)"


@pytest.mark.parametrize(
    ("failed", "message"),
    [
        (
            Failed(1, STAGE_LOOKUP, 2, lookup.NOT_IN_PATH, [b"p", b"/d1:/d2", b"d/d1/p", b"x/d2/p"]),
            "Unable to spawn p because:\n/d1/p exists but is a directory.\n"
            '/d2/p exists but is not executable.\nNo viable candidates found in PATH "/d1:/d2"',
        ),
        (
            Failed(1, STAGE_LOOKUP, 2, lookup.NO_PATH, [b"p"]),
            "Unable to spawn p because:\nUnable to resolve the PATH",
        ),
        (
            Failed(1, STAGE_LOOKUP, errno.ENOTDIR, lookup.MISSING, [b"/p"]),
            "Unable to spawn /p because it doesn't exist on the filesystem (ENOTDIR: Not a directory)",
        ),
        (
            Failed(1, STAGE_LOOKUP, 2, lookup.MISSING_RELATIVE, [b"/./p"]),
            "Unable to spawn /./p because it does not exist",
        ),
        (
            Failed(1, STAGE_LOOKUP, errno.EACCES, lookup.NOT_EXECUTABLE, [b"/p"]),
            "Unable to spawn /p because it is not executable (EACCES: Permission denied)",
        ),
        (
            Failed(1, STAGE_LOOKUP, 2, lookup.NOT_EXECUTABLE_RELATIVE, [b"/./p"]),
            "Unable to spawn /./p because it is not executable",
        ),
        (
            Failed(1, STAGE_LOOKUP, errno.EISDIR, lookup.IS_DIRECTORY, [b"/p"]),
            "Unable to spawn /p because it is a directory",
        ),
    ],
)
def test_every_refusal_of_the_zygotes_lookup_has_its_text(failed: Failed, message: str) -> None:
    assert start_error(failed).message == message


def test_a_supervision_is_asked_for_beside_what_confines() -> None:
    confined = Confinement(LANDLOCK, b"plan")
    spec = SpawnSpec([b"x"], {}, b"/", confinement=confined, watch=Watch(b"w", 5))
    assert confinement_fields(spec) == (confined, b"w", False)
    assert confinement_fields(SpawnSpec([b"x"], {}, b"/")) == (UNCONFINED, b"", False)


def test_only_a_sandbox_is_asked_for_what_listens_in_it() -> None:
    spec = SpawnSpec([b"x"], {}, b"/", listeners_fd=5)
    assert [one.listens for one in (spec, spec._replace(confinement=Confinement(LANDLOCK, b"plan")))] == [
        False,
        True,
    ]
