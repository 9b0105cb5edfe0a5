"""Programs that are linked with musl, as on Alpine: its loader, its way to start others, its errors."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER = "musl-gcc"  # Debian's musl-tools
LINKED = {"dynamic": (), "static": ("-static",)}
# `touch FILE` makes a file, `start PROGRAM [WORD]...` becomes its parent; both tell the error's number.
_TEXT = r"""
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int main(int count, char **words)
{
    if (count > 2 && !strcmp(words[1], "start")) {
        pid_t child;
        int status;
        if ((errno = posix_spawnp(&child, words[2], NULL, NULL, words + 2, environ)))
            return printf("not started: %d\n", errno), 2;
        waitpid(child, &status, 0);
        return printf("child: %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status)), 0;
    }
    if (open(words[2], O_CREAT | O_WRONLY, 0600) < 0)
        return printf("refused: %s\n", errno == EROFS || errno == EACCES ? "read-only" : strerror(errno)), 1;
    puts("made");
    return 0;
}
"""


def compiled(folder: Path, *flags: str) -> Path:
    """Return the program, which everybody may start; skip where there is no compiler that links with musl."""
    compiler = shutil.which(COMPILER)
    if compiler is None:
        pytest.skip(f"there is no {COMPILER} here (Debian: musl-tools)")
    source, program = folder / "musl.c", folder / "muslprogram"
    source.write_text(_TEXT)
    done = subprocess.run(
        [compiler, *flags, "-o", program, source], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"{COMPILER} does not link here: {done.stderr.strip().splitlines()[-1]}")
    program.chmod(0o755)
    return program
