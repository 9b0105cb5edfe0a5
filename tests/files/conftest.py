"""Folders for the file operations, which take paths as bytes."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.support.folders import plain_place

NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path) -> bytes:
    """An empty folder."""
    return os.fsencode(tmp_path)


@pytest.fixture
def deep_folder() -> Iterator[bytes]:
    """An empty folder for trees that are too deep for the one who clears the usual ones."""
    path = tempfile.mkdtemp(dir=plain_place())
    yield os.fsencode(path)
    subprocess.run(["rm", "-rf", path], check=True)


@pytest.fixture
def shared_folder() -> Iterator[bytes]:
    """An empty folder that everybody can reach, for tests that give up their privileges."""
    path = os.fsencode(tempfile.mkdtemp(dir=plain_place()))
    os.chmod(path, 0o755)
    yield path
    os.chmod(path, 0o700)
    for parent, names, _ in os.walk(path):
        for name in names:
            os.chmod(os.path.join(parent, name), 0o700)
    shutil.rmtree(path)


@pytest.fixture
def unprivileged(shared_folder: bytes) -> Callable[[], AbstractContextManager[None]]:
    """A context in which what is in the shared folder is somebody else's, also when the tests run as root."""

    @contextmanager
    def act() -> Iterator[None]:
        if os.geteuid() != 0:
            with _without_the_owners_rights(shared_folder):
                yield
            return
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)

    return act


@contextmanager
def _without_the_owners_rights(folder: bytes) -> Iterator[None]:
    """Leave the owner what everybody has: it cannot become somebody else."""
    paths = [folder]
    for parent, folders, files in os.walk(folder):
        if os.access(parent, os.X_OK):
            paths += [os.path.join(parent, name) for name in (*folders, *files)]
    modes = {path: stat.S_IMODE(os.lstat(path).st_mode) for path in paths if not os.path.islink(path)}
    for path in reversed(modes):
        os.chmod(path, modes[path] & 0o7077 | (modes[path] & 0o007) << 6)
    try:
        yield
    finally:
        for path, mode in modes.items():
            os.chmod(path, mode)
