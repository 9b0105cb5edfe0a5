"""The machine code that an assembler makes of a listing, whose lines are its bytes and an instruction each.

GNU's assembler for that machine is taken, or LLVM's, which knows them all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_SYNTAX = {"x86_64": ".intel_syntax noprefix\n", "aarch64": ""}


def machine_code(machine: str, listing: str, folder: Path) -> bytes:
    """Return the code of a listing's instructions; skips where no assembler knows that machine."""
    words = [line if line.endswith(":") else " ".join(line.split()[1:]) for line in listing.split("\n")]
    source, made, code = folder / "source.s", folder / "object", folder / "code"
    source.write_text(_SYNTAX[machine] + "\n".join(words) + "\n")
    assembler, copier = _tools(machine)
    subprocess.run([*assembler, "-o", made, source], check=True)
    subprocess.run([copier, "-O", "binary", "-j", ".text", made, code], check=True)
    return code.read_bytes()


def _tools(machine: str) -> tuple[list[str], str]:
    """Return the words that start an assembler, and what takes the code out of its object files."""
    prefix = "" if machine == os.uname().machine else f"{machine}-linux-gnu-"
    assembler, copier = shutil.which(f"{prefix}as"), shutil.which(f"{prefix}objcopy")
    if assembler and copier:
        return [assembler], copier
    assembler, copier = shutil.which("llvm-mc"), shutil.which("llvm-objcopy")
    if assembler and copier:
        return [assembler, f"--triple={machine}-linux-gnu", "--filetype=obj"], copier
    pytest.skip(f"there is no assembler for {machine}")
