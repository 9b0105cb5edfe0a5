"""Finds the browser that plays the console's pages, and what drives it.

The browser is the distribution's `chromium`.  Playwright drives it; it is no requirement of a checkout:
`driver()` installs it with pip into a cache folder, `$EXECSERVER_BROWSER_DIR`, by default
`~/.cache/execserver-browser`.  `BrowserMissing` says what was tried and what to do.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER_VARIABLE = "EXECSERVER_BROWSER_DIR"
INSTALL_WAIT = 600.0
PROGRAMS = ("chromium", "chromium-browser")
VERSION = "1.55.0"
# greenlet and typing_extensions are those of the checkout.
REQUIREMENTS = f"""\
playwright=={VERSION} \\
    --hash=sha256:c6d4d8f6f8c66c483b0835569c7f0caa03230820af8e500c181c93509c92d831 \\
    --hash=sha256:29a0777c4ce1273acf90c87e4ae2fe0130182100d99bcd2ae5bf486093044838
pyee==13.0.0 \\
    --hash=sha256:48195a3cddb3b1515ce0695ed76036b5ccc2ef3a9f963ff9f77aec0139845498
"""


class BrowserMissing(Exception):
    """There is no browser, or nothing that drives it; the text says why."""


def program() -> str:
    """Return the browser's path.  Raises BrowserMissing."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        raise BrowserMissing("there is no chromium (apt-get install chromium)")
    return found


def folder() -> Path:
    """Return where what drives it is kept; it need not exist."""
    cache = os.environ.get(FOLDER_VARIABLE) or Path.home() / ".cache" / "execserver-browser"
    return Path(cache) / f"{VERSION}-{sys.implementation.cache_tag}"


def is_installed() -> bool:
    """Tell whether what drives the browser is there."""
    return (folder() / "playwright").is_dir()


def driver() -> Any:
    """Return the module that drives browsers, installed if need be.  Raises BrowserMissing."""
    if not is_installed():
        _install(folder())
    if str(folder()) not in sys.path:
        sys.path.append(str(folder()))
    return importlib.import_module("playwright.sync_api")


def _install(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as made:
        wanted = Path(made) / "requirements.txt"
        wanted.write_text(REQUIREMENTS)
        options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
        options += ["--disable-pip-version-check", "--target", f"{made}/site", "-r", str(wanted)]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pip", "install", *options],
                capture_output=True,
                text=True,
                timeout=INSTALL_WAIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BrowserMissing(f"installing playwright took more than {INSTALL_WAIT} s") from None
        if done.returncode:
            raise BrowserMissing(f"playwright cannot be installed:\n{done.stderr.strip()}")
        os.replace(f"{made}/site", target)


def main() -> int:
    """Install it; print where it is, or what is missing."""
    try:
        driver()
        sys.stdout.write(f"{program()}, driven from {folder()}\n")
    except BrowserMissing as missing:
        sys.stderr.write(f"{missing}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
