"""dist/install.sh: the script of `deploy/`, which knows the hashes of the files that lie beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

SCRIPT = "install.sh"
_PLACE = "@HASHES@"


def write(root: Path, files: Sequence[Path]) -> Path:
    """Write the script for some files into their folder, executable; return it."""
    hashes = "\n".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in files)
    script = files[0].with_name(SCRIPT)
    fresh = script.with_name(f".{SCRIPT}")
    fresh.write_text((root / "deploy" / SCRIPT).read_text().replace(_PLACE, hashes))
    fresh.chmod(0o755)
    fresh.replace(script)
    return script
