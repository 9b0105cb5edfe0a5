"""Folders for tests that run things as another user, and where placeholders are tried."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox.mask_target_place import Place
from tests.support.roots import open_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a temporary folder that every user can pass through."""
    with open_folder() as folder:
        yield folder


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def no_descriptor_stays_open() -> Iterator[None]:
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert sorted(os.listdir("/proc/self/fd")) == before
