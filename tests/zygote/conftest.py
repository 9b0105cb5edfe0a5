"""Folders for tests that run things as another user, and the folder the tests themselves stand in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.views import open_folder


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
