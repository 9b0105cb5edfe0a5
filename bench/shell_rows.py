"""The rows of the shell tool's benchmark: what is run, how many of it at once, and the folder that it needs.

Each is a command of a shell, or several side by side.  A row whose programs are not on this machine is left
out.  `RULES` says which programs run outside the sandbox.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

RULES = 'prefix_rule(["true"])\nprefix_rule(["cc"])\nprefix_rule(["git"])\n'
PROGRAMS = {"inside": "/bin/false", "outside": "/bin/true"}  # a rule lets the second run outside
_SOURCES = 300
_AT_ONCE = 8
_MAKEFILE = """\
objects := $(patsubst %.c,%.o,$(wildcard *.c))
all: $(objects)
%.o: %.c
	@cc -O0 -c -o $@ $<
"""
_SCRIPTS = {"build": "node build.js", "test": "npm run -s build && node build.js"}
_GIT_USER = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")


class Row(NamedTuple):
    """One row: the command, and how many of it are started at the same time."""

    name: str
    command: str
    at_once: int = 1


def rows(programs: int, sources: int, folder: Path) -> list[Row]:
    """Return the rows that this machine can run, after making their projects in a folder."""
    found = [Row("one call of `true`", "true"), Row(f"{_AT_ONCE} calls of `true` at once", "true", _AT_ONCE)]
    for place, path in PROGRAMS.items():
        loop = f"i=0; while [ $i -lt {programs} ]; do {path}; i=$((i+1)); done; true"
        found.append(Row(f"{programs} programs {place}", loop))
        found.append(Row(f"{_AT_ONCE} times {programs} programs {place}", loop, _AT_ONCE))
    for names, make in _PROJECTS.items():
        if all(map(shutil.which, names)):
            project = folder / names[0]
            project.mkdir()
            found.append(make(project, sources))
    return found


def _compiled(folder: Path, sources: int) -> Row:
    for number in range(sources):
        (folder / f"f{number}.c").write_text(f"int f{number}(int x) {{ return x + {number}; }}\n")
    (folder / "Makefile").write_text(_MAKEFILE)
    place = shlex.quote(str(folder))
    return Row(f"`make -j8` of {sources} C files", f"cd {place} && make -s -B -j8")


def _committed(folder: Path, sources: int) -> Row:
    for number in range(sources):
        (folder / f"f{number}").write_text(f"{number}\n")
    for arguments in (("init", "-q"), ("add", "-A"), (*_GIT_USER, "commit", "-qm", "first")):
        subprocess.run(["git", *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    steps = [
        f"cd {shlex.quote(str(folder))}",
        *("git status --short", "git diff --stat HEAD", "git log -3 --oneline", "git rev-parse HEAD"),
        f"git {' '.join(_GIT_USER)} commit -q --allow-empty -m more",
    ]
    return Row("status, diff, log and commit of `git`", f"({' && '.join(steps)}) > /dev/null")


def _scripted(folder: Path, sources: int) -> Row:
    (folder / "package.json").write_text(
        json.dumps({"name": "bench", "version": "1.0.0", "scripts": _SCRIPTS})
    )
    (folder / "build.js").write_text("let sum = 0; for (let i = 0; i < 1e5; i++) sum += i;\n")
    place = shlex.quote(str(folder))
    return Row(
        "`npm run`, a script within a script",
        f"cd {place} && npm_config_cache={place}/c npm run -s test 2> /dev/null",
    )


_PROJECTS: dict[tuple[str, ...], Callable[[Path, int], Row]] = {
    ("make", "cc"): _compiled,
    ("git",): _committed,
    ("npm", "node"): _scripted,
}
