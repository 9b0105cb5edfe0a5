"""`execserver licenses` where nothing is carried; the built files are looked at in `packaging/`."""

from __future__ import annotations

import subprocess
import sys

from tests.support.source import ROOT


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(ROOT / "execserver" / "__main__.py"), "licenses", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_a_checkout_prints_the_licence_of_the_project() -> None:
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    text = (ROOT / "LICENSE").read_text()
    assert done.stdout.startswith(text)
    assert "installed beside it" in done.stdout.removeprefix(text)


def test_it_takes_no_arguments() -> None:
    done = run("all")
    assert (done.returncode, done.stdout) == (2, "")
    assert "unexpected argument 'all' found" in done.stderr
    assert "Usage: execserver licenses" in done.stderr
