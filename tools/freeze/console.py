"""The files of the console's pages as they are carried: our own, and xterm.js, the terminal of the browser.

xterm.js is not in the repository.  npm gets the very version that is pinned here, once, into `build/xterm`;
what it gets is compared with these hashes.  Where it cannot be had, a build says so, and goes on without.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from tools.freeze.licences import Part
from tools.problems import Problem, say

PACKAGE: Final = "@xterm/xterm@5.5.0"
_INTEGRITY: Final = "hqJHYaQb5OptNunnyAnkHyM8aCjZ1MEIDTQu1iIbbTD/xops91NB5yq1ZK/dC2JDbVWtF23zUtl9JE2NqwT87A=="
LICENCE: Final = "LICENSE"
# Where it is in the package, and its SHA-256.
_FILES: Final = {
    "package/lib/xterm.js": "1f991ac3b4b283ebf96e60ae23a00a52765dd3a2e46fa6fdda9f1aab032f7495",
    "package/css/xterm.css": "ba8e6985669488981ccf40c0cefe3aba80722cb6c92de7ad628b0bd717faf2b6",
    "package/LICENSE": "b569f629d00f2626a8100df2a1798210535621e42164dfd426a6fe5aac7b0ccd",
}
_MAP: Final = b"\n//# sourceMappingURL=xterm.js.map"  # a file that is not carried
_PAGES: Final = "execserver/box/web/static"
_WAIT_S: Final = 120
# npm would wait for five minutes where nothing answers, for a part that a build can do without.
_PATIENCE: Final = ("--fetch-timeout=20000", "--fetch-retries=1", "--fetch-retry-mintimeout=1000")


def carried(root: Path) -> dict[str, bytes]:
    """Return the files of the console by name, xterm.js among them if it is there."""
    found = {path.name: path.read_bytes() for path in sorted((root / _PAGES).iterdir()) if path.is_file()}
    for name in ("xterm.js", "xterm.css"):
        if (kept := _kept(root, name)) is not None:
            found[name] = kept
    return found


def licence(root: Path) -> list[Part]:
    """Return the licence of xterm.js, nothing if it is not there."""
    text = _kept(root, LICENCE)
    name = PACKAGE.rpartition("/")[2].replace("@", ".js ")
    return [] if text is None else [Part(name, "MIT", (text.decode(),))]


def fetch(root: Path) -> None:
    """Have npm get xterm.js into `build/xterm`, if it is not there.  Says why where that fails."""
    if all(_kept(root, path.rpartition("/")[2]) is not None for path in _FILES):
        return
    try:
        files = unpacked(_packed())
    except Problem as problem:
        say(f"the console is built without its terminal: {problem.what}")
        return
    folder = root / "build" / "xterm"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        fresh = folder / f".{name}.{os.getpid()}"
        fresh.write_bytes(data)
        fresh.replace(folder / name)


def unpacked(package: bytes) -> dict[str, bytes]:
    """Return the files of a package by name.  Raises Problem if it is not the pinned one."""
    if hashlib.sha512(package).digest() != base64.b64decode(_INTEGRITY):
        raise Problem(f"what npm got is not {PACKAGE}", "look at what npm's registry and cache hold")
    found = {}
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        for path in _FILES:
            member = archive.extractfile(path)
            assert member is not None
            found[path.rpartition("/")[2]] = member.read()
    return found


def _kept(root: Path, name: str) -> bytes | None:
    """Return a file of xterm.js as it was pinned, None if it is not there."""
    wanted = next(digest for path, digest in _FILES.items() if path.endswith(f"/{name}"))
    try:
        data = (root / "build" / "xterm" / name).read_bytes()
    except OSError:
        return None
    return data.removesuffix(_MAP) if hashlib.sha256(data).hexdigest() == wanted else None


def _packed() -> bytes:
    npm = shutil.which("npm")
    if npm is None:
        raise Problem("there is no npm to get xterm.js with", "install npm and build again")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", "--silent", "--ignore-scripts", *_PATIENCE, PACKAGE]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_WAIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Problem(f"npm took more than {_WAIT_S} s", "look at the network") from None
        made = list(Path(folder).glob("*.tgz"))
        if done.returncode or len(made) != 1:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
            raise Problem(f"npm cannot get {PACKAGE}: {lines[-1]}", "connect to the network and build again")
        return made[0].read_bytes()
