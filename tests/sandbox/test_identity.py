from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.sandbox.identity import NotAsPlanned, check_identity
from tests.support.roots import identity


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[int]:
    """Return a descriptor of the file `a`."""
    (tmp_path / "a").touch()
    descriptor = os.open(tmp_path / "a", os.O_PATH | os.O_CLOEXEC)
    yield descriptor
    os.close(descriptor)


def test_what_was_planned_is_accepted_with_its_type(opened: int, tmp_path: Path) -> None:
    assert check_identity(identity(tmp_path / "a"), opened) == stat.S_IFREG


def test_without_an_identity_everything_is_accepted(opened: int) -> None:
    assert check_identity(None, opened) == stat.S_IFREG


def test_another_object_makes_the_plan_stale(opened: int, tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    with pytest.raises(NotAsPlanned, match="not what it was when the policy was resolved") as caught:
        check_identity(identity(tmp_path / "b"), opened)
    assert caught.value.errno == errno.ESTALE
