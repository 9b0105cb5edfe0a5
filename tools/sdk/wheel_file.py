"""Writes a wheel of pure Python whose bytes depend on its content only: order, times and modes are fixed."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

TAG = "py3-none-any"
_WHEEL = f"Wheel-Version: 1.0\nGenerator: execserver-build\nRoot-Is-Purelib: true\nTag: {TAG}\n"
_MODE = 0o644
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that a ZIP file can tell


def write_wheel(
    folder: Path, name: str, version: str, content: Mapping[str, bytes], about: Mapping[str, bytes]
) -> Path:
    """Write a wheel into a folder: `content` goes into site-packages, `about` into its `.dist-info`."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    files = {**content, **{f"{info}/{path}": data for path, data in about.items()}}
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    ordered = {path: files[path] for path in sorted(files, key=lambda path: (path.startswith(info), path))}
    ordered[f"{info}/RECORD"] = _record(ordered, info)
    return pack(folder / f"{stem}-{TAG}.whl", ordered)


def pack(path: Path, files: Mapping[str, bytes]) -> Path:
    """Write files into an archive in their order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = (0o100000 | _MODE) << 16
            entry.create_system = 3  # modes are those of Unix
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return path


def _record(files: Mapping[str, bytes], info: str) -> bytes:
    lines = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{info}/RECORD,,\n"]).encode()
