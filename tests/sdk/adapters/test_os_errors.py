"""From answers of a server to errors of Python."""

from __future__ import annotations

import pytest

from execserver_adapters._os_errors import as_os_error, number_of
from execserver_client import RequestFailed
from execserver_client import errors as client_errors


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("No such file or directory (os error 2)", FileNotFoundError),
        ("Permission denied (os error 13)", PermissionError),
        ("Is a directory (os error 21)", IsADirectoryError),
        ("Not a directory (os error 20)", NotADirectoryError),
        ("File exists (os error 17)", FileExistsError),
    ],
)
def test_the_number_chooses_the_class(message: str, kind: type[OSError]) -> None:
    error = as_os_error(RequestFailed(-32603, message), "some/file")
    assert type(error) is kind
    assert error.filename == "some/file"


def test_a_missing_file_needs_no_number() -> None:
    error = as_os_error(client_errors.NotFoundError(-32004, "gone"), "f")
    assert type(error) is FileNotFoundError


def test_an_answer_without_a_number_is_told_as_it_is_but_not_at_any_length() -> None:
    error = as_os_error(RequestFailed(-32603, "x" * 5000), "f")
    assert type(error) is OSError
    assert str(error) == "x" * 300 + ": 'f'"


def test_a_number_that_is_none_is_left_alone() -> None:
    assert number_of(RequestFailed(-1, "(os error 99999)")) is None
