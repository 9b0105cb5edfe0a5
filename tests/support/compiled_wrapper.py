"""The launcher compiled as the wrapper, with the sanitizers of the compiler: a step out of bounds ends it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.source import ROOT
from tools.freeze.head import SOURCES

SANITIZERS = "-fsanitize=address,undefined"
# It ends or becomes another program, and so frees nothing.
OPTIONS = 'const char *__asan_default_options(void) { return "detect_leaks=0"; }\n'


def compile_wrapper(folder: Path) -> Path | None:
    """Return a program named `codex-execve-wrapper`; None where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    (folder / "options.c").write_text(OPTIONS)
    target = folder / "codex-execve-wrapper"
    sources = [str(ROOT / "launcher" / name) for name in SOURCES]
    command = [compiler, "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", '-DLOADER="none"']
    command += ["-o", str(target), *sources]
    tried = [*command, SANITIZERS, str(folder / "options.c")]
    if subprocess.run(tried, capture_output=True, check=False).returncode:
        subprocess.run(command, check=True, capture_output=True)  # a compiler without its sanitizers
    target.chmod(0o755)  # other users start it too, whatever the mask says
    return target
