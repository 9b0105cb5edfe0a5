"""`execserver install-aliases DIR`: links by whose names other programs find this one.

Never touches what it did not make: a name that is taken by anything but a link to this very file stops it
before the first link is made.  Calling it again is fine.
"""

from __future__ import annotations

import os
import sys

from execserver.dispatch import NAMES
from execserver.protocol.errors import os_error_text
from execserver.verbs.program import is_startable, own_file
from execserver.verbs.usage import Leave, operands

VERB = "install-aliases"


class _Refusal(Exception):
    """Nothing (more) is done: what is in the way, and what to do about it."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(what)
        self.what = what
        self.cure = cure


def main() -> int:
    """Make the links; return 0, 1 when they cannot be made, 2 for wrong usage."""
    try:
        (folder,) = operands(VERB, ("<DIR>",))
        _install(folder, own_file())
    except Leave as leave:
        return leave.status
    except _Refusal as refusal:
        sys.stderr.write(f"Error: {refusal.what}\n  What to do: {refusal.cure}\n")
        return 1
    return 0


def _install(folder: str, program: str) -> None:
    if not is_startable(program):
        raise _Refusal(
            f"{program} cannot be started by its path alone, so no link can lead to it",
            "make it executable, or build the program with `python3 build.py build` and call dist/execserver",
        )
    if not os.path.isdir(folder):
        raise _Refusal(f"{folder} is not a directory", f"make it first: mkdir -p {folder}")
    missing = [name for name in NAMES if not _leads_to(os.path.join(folder, name), program)]
    for name in NAMES:
        link = os.path.join(folder, name)
        if name in missing:
            _link(link, program)
        note = "" if NAMES[name] else " (not in this build yet: it will say so)"
        sys.stdout.write(f"{link} -> {program}{note}\n")


def _leads_to(link: str, program: str) -> bool:
    """Tell whether a link is there already.  Raises _Refusal when something else has its name."""
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
    # A link beside the program goes with it when the folder is moved.
    beside = os.path.realpath(os.path.dirname(link) or ".") == os.path.dirname(program)
    try:
        os.symlink(os.path.basename(program) if beside else program, link)
    except FileExistsError:
        raise _taken(link) from None  # made in this moment, by whomever
    except OSError as error:
        raise _failed(link, error) from None


def _taken(link: str) -> _Refusal:
    if os.path.islink(link):
        what = f"{link} is a link to {os.readlink(link)}, not to this program"
    else:
        what = f"{link} exists and is no link to this program"
    return _Refusal(what, f"look at it; if nobody needs it, remove it: rm {link}")


def _failed(link: str, error: OSError) -> _Refusal:
    return _Refusal(
        f"{link} cannot be made: {os_error_text(error.errno or 0)}", "choose a folder you may write to"
    )
