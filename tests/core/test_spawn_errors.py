from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.core import spawn_errors
from execserver.core.spawn_errors import CandidateFault, LookupRefusal, lookup_refused
from execserver.protocol.errors import InternalError


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (spawn_errors.missing_program(tty=False), "missing program for pipe spawn"),
        (spawn_errors.missing_program(tty=True), "missing program for PTY spawn"),
        (spawn_errors.nul_byte(), "nul byte found in provided data"),
        (spawn_errors.os_failure(errno.ENOEXEC), "Exec format error (os error 8)"),
        (spawn_errors.os_failure(errno.ENAMETOOLONG), "Filename too long (os error 36)"),
        (
            spawn_errors.start_timed_out(5.0),
            "process start timed out after 5 s (the program or its folder does not answer)",
        ),
        (
            spawn_errors.too_many_hanging(4),
            "process start refused: 4 earlier starts hang (their folders do not answer)",
        ),
        (
            spawn_errors.starter_lost(),
            "process start failed: the process that starts programs ended unexpectedly",
        ),
        (spawn_errors.shutting_down(), "process start refused: the server is shutting down"),
    ],
)
def test_the_texts(error: InternalError, message: str) -> None:
    assert (error.code, error.message) == (-32603, message)


@pytest.mark.parametrize(
    ("refusal", "program", "number", "message"),
    [
        (
            LookupRefusal.MISSING,
            b"/no/such/bin",
            errno.ENOENT,
            "Unable to spawn /no/such/bin because it doesn't exist on the filesystem "
            "(ENOENT: No such file or directory)",
        ),
        (
            LookupRefusal.MISSING,
            b"/file/x",
            errno.ENOTDIR,
            "Unable to spawn /file/x because it doesn't exist on the filesystem (ENOTDIR: Not a directory)",
        ),
        (
            LookupRefusal.MISSING,
            b"/loop",
            errno.ELOOP,
            "Unable to spawn /loop because it doesn't exist on the filesystem "
            "(ELOOP: Too many symbolic links encountered)",
        ),
        (
            LookupRefusal.MISSING_RELATIVE,
            b"/tmp/./x",
            0,
            "Unable to spawn /tmp/./x because it does not exist",
        ),
        (
            LookupRefusal.NOT_EXECUTABLE,
            b"/tmp/script",
            errno.EACCES,
            "Unable to spawn /tmp/script because it is not executable (EACCES: Permission denied)",
        ),
        (
            LookupRefusal.NOT_EXECUTABLE_RELATIVE,
            b"/tmp/./script",
            0,
            "Unable to spawn /tmp/./script because it is not executable",
        ),
        (LookupRefusal.IS_DIRECTORY, b"/tmp", 0, "Unable to spawn /tmp because it is a directory"),
        (LookupRefusal.NO_PATH, b"x", 0, "Unable to spawn x because:\nUnable to resolve the PATH"),
        (
            LookupRefusal.NOT_IN_PATH,
            b"nope-\xff",
            0,
            'Unable to spawn nope-\ufffd because:\nNo viable candidates found in PATH ""',
        ),
    ],
)
def test_why_no_program_was_found(refusal: LookupRefusal, program: bytes, number: int, message: str) -> None:
    assert lookup_refused(refusal, program, number).message == message


def test_unusable_candidates_come_before_the_path() -> None:
    error = lookup_refused(
        LookupRefusal.NOT_IN_PATH,
        b"prog",
        path=b"/d1:/d2",
        candidates=((CandidateFault.DIRECTORY, b"/d1/prog"), (CandidateFault.NOT_EXECUTABLE, b"/d2/prog")),
    )
    assert error.message == (
        "Unable to spawn prog because:\n/d1/prog exists but is a directory.\n"
        '/d2/prog exists but is not executable.\nNo viable candidates found in PATH "/d1:/d2"'
    )


def quoted(path: bytes) -> str:
    message = lookup_refused(LookupRefusal.NOT_IN_PATH, b"x", path=path).message
    return message.partition("PATH ")[2]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (b"/usr/bin:/bin", '"/usr/bin:/bin"'),
        ("a\"b\\c\té\u0301\x01'z".encode(), '"a\\"b\\\\c\\té\\u{301}\\u{1}\'z"'),
        (b"\n\r\0", '"\\n\\r\\0"'),
        (b"\xff/\xc3", '"\\xFF/\\xC3"'),
        ("日本".encode(), '"日本"'),
    ],
)
def test_how_the_path_is_quoted(path: bytes, text: str) -> None:
    assert quoted(path) == text


@given(st.binary(max_size=60))
def test_any_path_has_a_quotation_of_printable_characters(path: bytes) -> None:
    text = quoted(path)
    assert text[0] == text[-1] == '"'
    assert text.isprintable()
