"""`execserver install-aliases DIR`: symlinks by whose names other programs find this one.

Never changes what it did not make: if one of the names is taken by anything but a symlink to this very file,
it makes no symlink at all.  It can be called again.
"""

from __future__ import annotations

import os
import sys

from execserver.dispatch import CODEX_NAME, NAMES
from execserver.leaving import Leave, failure, until_left
from execserver.protocol.errors import os_error_text
from execserver.verbs.program import is_startable, own_file
from execserver.verbs.usage import verb

VERB = "install-aliases"
CODEX_FLAG = "--codex"


def main() -> int:
    """Make the symlinks; return 0, 1 if they cannot be made, 2 for wrong usage."""
    return until_left(_main)


def _main() -> int:
    parsed = verb(f"{VERB} [{CODEX_FLAG}] <DIR>", CODEX_FLAG, operands=("<DIR>",)).parse(sys.argv[1:])
    names = [*NAMES, CODEX_NAME] if CODEX_FLAG in parsed.options else [*NAMES]
    _install(parsed.operands[0], own_file(), names)
    return 0


def _install(folder: str, program: str, names: list[str]) -> None:
    if not is_startable(program):
        raise failure(
            f"{program} cannot be started by its path alone, so no link can lead to it",
            "make it executable, or build the program with `python3 build.py build` and call dist/execserver",
        )
    if not os.path.isdir(folder):
        raise failure(f"{folder} is not a directory", f"make it first: mkdir -p {folder}")
    missing = [name for name in names if not _leads_to(os.path.join(folder, name), program)]
    for name in names:
        link = os.path.join(folder, name)
        if name in missing:
            _link(link, program)
        sys.stdout.write(f"{link} -> {program}\n")


def _leads_to(link: str, program: str) -> bool:
    """Return whether a symlink is there already.  Raises Leave if something else has its name."""
    try:
        os.lstat(link)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _failed(link, error) from None
    if os.path.islink(link) and os.path.realpath(link) == program:
        return True
    raise _taken(link)


def _link(link: str, program: str) -> None:
    # A symlink beside the program is relative, so that both can be moved with their directory.
    beside = os.path.realpath(os.path.dirname(link) or ".") == os.path.dirname(program)
    try:
        os.symlink(os.path.basename(program) if beside else program, link)
    except FileExistsError:
        raise _taken(link) from None  # another process made it just now
    except OSError as error:
        raise _failed(link, error) from None


def _taken(link: str) -> Leave:
    if os.path.islink(link):
        what = f"{link} is a link to {os.readlink(link)}, not to this program"
    else:
        what = f"{link} exists and is no link to this program"
    return failure(what, f"look at it; if nobody needs it, remove it: rm {link}")


def _failed(link: str, error: OSError) -> Leave:
    return failure(
        f"{link} cannot be made: {os_error_text(error.errno or 0)}", "choose a folder you may write to"
    )
