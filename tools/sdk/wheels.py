"""Makes the wheels of the server and of the SDK's packages in `dist/`: the same bytes of the same source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from execserver.version import __version__
from tools.problems import Problem, say, tell
from tools.sdk.packages import CLIENT, Package, packages
from tools.sdk.vendoring import carried, own
from tools.sdk.wheel_file import pack, write_wheel

ROOT = Path(__file__).resolve().parents[2]
SERVER_SOURCES = ("execserver", "helpers", "pyproject.toml", "LICENSE", "README.md")
_BUILD_LIMIT_S = 300
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info")


def make(package: Package, folder: Path) -> Path:
    """Write the wheel of one package of the SDK."""
    content = own(ROOT, package.module)
    if package is CLIENT:
        content |= carried(ROOT)
    readme = (ROOT / "sdk" / package.readme).read_text()
    about = {
        "METADATA": package.metadata(__version__, readme).encode(),
        "licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    if text := package.entry_points_text():
        about["entry_points.txt"] = text.encode()
    return write_wheel(folder, package.name, __version__, content, about)


def make_server(folder: Path) -> Path:
    """Write the server's wheel, made by setuptools from a copy, free of what older builds have left."""
    with tempfile.TemporaryDirectory() as place:
        for name in SERVER_SOURCES:
            source, target = ROOT / name, Path(place, "source", name)
            target.parent.mkdir(exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=_LEFT_OUT)
            else:
                shutil.copyfile(source, target)
        code = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
        done = subprocess.run(
            [sys.executable, "-c", code, place],
            cwd=Path(place, "source"),
            env={**os.environ, "SOURCE_DATE_EPOCH": "315532800"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_BUILD_LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise Problem(f"setuptools made no wheel: {done.stdout[-500:]}", "see what it says")
        (made,) = Path(place).glob("*.whl")
        with zipfile.ZipFile(made) as archive:
            files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
        return pack(folder / made.name, files)


def main() -> int:
    """Make all of them; tell where they are."""
    folder = ROOT / "dist"
    try:
        made = [make_server(folder), *(make(package, folder) for package in packages(ROOT))]
    except Problem as problem:
        return tell(problem)
    for path in made:
        say(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
