"""The adapter of Harbor, with the real package in its own environment, on a box with a root of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sdk.adapters.frameworks import play
from tests.support.server_process import Flavour, ServerProcess

pytestmark = pytest.mark.long

# Harbor makes and empties folders at the root of its environments: a root of tmpfs, with all of ours in it.
_OWN_ROOT = """
set -e
mount -t tmpfs tmpfs "$1"
for each in /*; do
  if [ -h "$each" ]; then cp -P "$each" "$1$each"
  elif [ -d "$each" ]; then case "$each" in /logs|/tests|/solution|/app) ;; *)
    mkdir "$1$each"; mount --rbind "$each" "$1$each" ;; esac
  fi
done
mkdir "$1/logs" "$1/tests" "$1/app"
root=$1
shift
exec chroot "$root" "$@"
"""


@pytest.fixture(autouse=True)
def new_enough() -> None:
    """Leave the tests out where Harbor cannot be installed."""
    if sys.version_info.minor < 12:
        pytest.skip("Harbor needs Python 3.12 or newer: run this test with it")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server whose / is its own."""
    namespaces = ("unshare", "-m") if os.geteuid() == 0 else ("unshare", "-Urm")
    if subprocess.run([*namespaces, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace can be made here")
    root = tmp_path / "root"
    root.mkdir()
    command = (*namespaces, "sh", "-c", _OWN_ROOT, "sh", str(root), sys.executable, "-m", "execserver")
    with ServerProcess(Flavour("ours", command, 0)) as server:
        yield server


def test_whole_trials_pass_on_a_box(box: ServerProcess, tmp_path: Path) -> None:
    assert " passed" in play("harbor", "with_harbor.py", box, tmp_path)
