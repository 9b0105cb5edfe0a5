"""Folders for tests that run things as another user, zygotes of one, and the folder the tests stand in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.roots import USERS, open_folder
from tests.support.sandbox_init import PYTHON, program_of
from tests.zygote.confined_harness import records_folder
from tests.zygote.supervised import Supervised


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a temporary folder that every user can pass through."""
    with open_folder() as folder:
        yield folder


@pytest.fixture(autouse=True)
def same_folder() -> Iterator[None]:
    """Go back to where the test began: a zygote stands in `/`, and some tests run its parts right here."""
    before = os.getcwd()
    yield
    os.chdir(before)


@pytest.fixture(params=USERS)
def user(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def maker() -> str:
    """Return what makes the sandboxes; a module that tries both has a fixture of its own."""
    return PYTHON


@pytest.fixture
def zygote(user: int, tmp_path: Path, maker: str) -> Iterator[Supervised]:
    """Return a zygote of the user."""
    with Supervised(user, folder=records_folder(tmp_path, user), program=program_of(maker)) as started:
        yield started
