"""Folders for tests that run things as another user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.views import open_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a temporary folder that every user can pass through."""
    with open_folder() as folder:
        yield folder
