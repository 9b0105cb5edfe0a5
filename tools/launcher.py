"""`dist/execserver`: a thin launcher into the prepared environment.

It is a script whose first line names the interpreter, because the kernel then hands it the path it was called
by: a symlink's name stays in argv[0] and selects the program.  The interpreter runs isolated and without
`site`, which saves a fifth of its start; the search path is written into the launcher instead.
"""

from __future__ import annotations

import os
from pathlib import Path

from tools.environment import Environment

# The kernel reads this much of a script's first line, and splits it at blanks (Linux 5.1 and later: 256).
_MAX_FIRST_LINE = 127

_INTERPRETER_LINE = "#!{python} -IS\n"
# For a path the kernel would not take: the shell runs the second line, Python reads it as a string.
_SHELL_LINES = "#!/bin/sh\n'''exec' {quoted} -IS \"$0\" \"$@\"\n' '''\n"

_BODY = """\
# Made by `python3 build.py build`; this folder may be moved, the project and its .venv may not.
import sys

sys.path[:0] = {paths!r}

from execserver.dispatch import main

sys.exit(main())
"""


def write_launcher(root: Path, environment: Environment) -> Path:
    """Write `dist/execserver` anew, at once for whoever starts it meanwhile, and return its path."""
    target = root / "dist" / "execserver"
    target.parent.mkdir(exist_ok=True)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    fresh.write_text(launcher_text(root, environment))
    fresh.chmod(0o755)
    fresh.replace(target)
    return target


def launcher_text(root: Path, environment: Environment) -> str:
    """Return the script for an environment."""
    python = str(environment.python)
    head = _INTERPRETER_LINE.format(python=python)
    if len(head) > _MAX_FIRST_LINE or any(character.isspace() for character in python):
        quoted = "'" + python.replace("'", "'\"'\"'") + "'"
        head = _SHELL_LINES.format(quoted=quoted)
    return head + _BODY.format(paths=[str(root), str(environment.site_packages)])
