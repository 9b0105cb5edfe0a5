"""The real git, asked what it ignores; it reads nobody's configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(repository: Path, *words: str, given: bytes = b"") -> bytes:
    """Run git in a folder and return what it prints; a status of 1 is an answer, too."""
    done = subprocess.run(
        ["git", *words],
        cwd=repository,
        env={
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
        },
        input=given,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def listed(repository: Path) -> set[bytes]:
    """Return the files that git would list, by their paths below the repository."""
    return {name for name in git(repository, "ls-files", "-coz", "--exclude-standard").split(b"\0") if name}
