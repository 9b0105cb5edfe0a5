"""The guess whether the sandbox made a process fail."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.core.denial import looks_denied

WORDS = (
    "operation not permitted",
    "permission denied",
    "read-only file system",
    "seccomp",
    "sandbox",
    "landlock",
    "failed to write file",
)
EXIT_CODES = st.integers(0, 255) | st.sampled_from([0, 2, 126, 127, 159])


def denied(exit_code: int, stdout: bytes = b"", stderr: bytes = b"") -> bool:
    return looks_denied(exit_code, stdout, stderr, stdout + stderr)


@pytest.mark.parametrize(
    ("exit_code", "stdout", "stderr", "expected"),
    [
        (2, b"Permission denied\n", b"", True),
        (3, b"", b"", False),
        (137, b"", b"", False),
        (
            101,
            b"",
            b"codex-linux-sandbox: Failed to execvp /no: No such file or directory (os error 2)\n",
            True,
        ),
        (1, b"", b"cat: /x: No such file or directory\n", False),
        (0, b"rc=2\n", b"sh: 1: cannot create g: Read-only file system\n", False),
        (2, b"", b"sh: 1: cannot create ../other/g: Read-only file system\n", True),
        (5, b"", b"", False),
        (5, b"Permission denied\n", b"", True),
        (0, b"Permission denied\n", b"", False),
        (2, b"SANDBOX\n", b"", True),
        (2, b"", b"", False),
        (126, b"", b"", False),
        (127, b"", b"sh: 1: x: not found\n", False),
        (159, b"", b"", True),
        (31, b"", b"", False),
        (1, b"PermissionError: [Errno 1] Operation not permitted\n", b"", True),
        (1, b"", b"bwrap: execvp /x: No such file or directory\n", False),
    ],
)
def test_recorded_cases(exit_code: int, stdout: bytes, stderr: bytes, expected: bool) -> None:
    assert denied(exit_code, stdout, stderr) is expected


@pytest.mark.parametrize("word", WORDS)
def test_every_word_counts_in_any_case_and_in_either_output(word: str) -> None:
    for text in (word, word.upper(), word.title(), f"x{word}y"):
        assert denied(126, stdout=text.encode())
        assert denied(2, stderr=text.encode())


def test_a_word_may_be_divided_between_the_outputs() -> None:
    assert looks_denied(1, b"seccxxx", b"omp", b"seccomp")
    assert looks_denied(1, b"xlandx", b"lock", b"landlock")
    assert not looks_denied(1, b"secc", b"omp", b"ompsecc")


def test_bytes_that_are_no_text_do_not_hide_a_word() -> None:
    assert denied(1, stdout=b"\xff\xfepermission denied\x80")
    assert not denied(1, stdout=b"permission\xff denied")


def test_letters_are_compared_as_unicode_has_them() -> None:
    assert denied(1, stdout="SANDBOX LANDLOC\N{KELVIN SIGN}".encode())
    assert denied(1, stdout="landloc\N{KELVIN SIGN}".encode())


def slow_model(exit_code: int, stdout: bytes, stderr: bytes) -> bool:
    texts = [part.decode("utf-8", "replace").lower() for part in (stdout, stderr, stdout + stderr)]
    if exit_code == 0:
        return False
    if any(word in text for text in texts for word in WORDS):
        return True
    if exit_code in (2, 126, 127):
        return False
    return exit_code == 159


PIECES = st.lists(st.sampled_from([word[i:] for word in WORDS for i in (0, 3)] + ["sec", "comp", " ", "é"]))
OUTPUT = PIECES.map(lambda pieces: "".join(pieces).encode()) | st.binary(max_size=30)


@given(EXIT_CODES, OUTPUT, OUTPUT)
def test_it_is_the_contracts_rule(exit_code: int, stdout: bytes, stderr: bytes) -> None:
    assert denied(exit_code, stdout, stderr) is slow_model(exit_code, stdout, stderr)
