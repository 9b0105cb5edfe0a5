"""Which build of a Python the environment is made of: one that was built with profiles, where there is one.

The one file carries the interpreter that it was built with.  One made with `--enable-optimizations`, often
with link-time optimisation, needs a fifth fewer instructions for a start than a plain build.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import NamedTuple

_STEP_S = 60
_PLACES = ("/usr/bin", "/usr/local/bin")  # looked at behind those of PATH

# Debian's program holds the interpreter itself, while its configuration is that of its library: it comes from
# another build, with profiles, and nothing in it says so.
_SCRIPT = """
import json, sys, sysconfig
is_told = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
with open("/proc/self/maps") as maps:
    is_apart = bool(sysconfig.get_config_var("Py_ENABLE_SHARED")) and "libpython" not in maps.read()
try:
    import ensurepip, venv
    makes_environments = True
except ImportError:
    makes_environments = False
program = getattr(sys, "_base_executable", sys.executable)
print(json.dumps([list(sys.version_info[:3]), program, is_told or is_apart, makes_environments]))
"""


class Interpreter(NamedTuple):
    """One Python of this machine; parts of it may be missing that make environments."""

    version: tuple[int, int, int]
    program: str
    is_optimized: bool
    makes_environments: bool

    @property
    def described(self) -> str:
        """Its version, place and build, for people."""
        build = "built with profiles" if self.is_optimized else "a plain build"
        return f"Python {'.'.join(map(str, self.version))} ({os.path.realpath(self.program)}), {build}"


def ask(program: str) -> Interpreter | None:
    """Return what a program says about itself; None if it is no Python that runs here."""
    command = [program, "-I", "-c", _SCRIPT]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_STEP_S, check=True)
        version, base, is_optimized, makes_environments = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(tuple(version), base, is_optimized, makes_environments)


def best_build(program: str = sys.executable) -> str:
    """Return a build with profiles of the same 3.N that makes environments; else the program itself."""
    own = ask(program)
    if own is None or own.is_optimized:
        return program
    name = f"python{own.version[0]}.{own.version[1]}"
    for path in (shutil.which(name) or name, *(f"{place}/{name}" for place in _PLACES)):
        found = ask(path)
        if found is None or found.version[:2] != own.version[:2]:
            continue
        if found.is_optimized and found.makes_environments:
            return path
    return program
