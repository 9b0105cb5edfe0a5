"""How this server gets to know which programs its shells start: found out once, before gevent is loaded.

Where the kernel tells, nothing else is needed.  Else a shell with the wrapper patch has to start the wrapper,
which is this program under another name: a link beside it if there is one, else one that is made for as long
as the server runs.  Where neither works every call is refused with the reason and the cure.
"""

from __future__ import annotations

import os
import sys

from execserver.zygote.probe_interception import choose
from execserver.zygote.supervision.records import WRAPPER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.runtime_paths import ExecServerRuntimePaths

WRAPPER_NAME = "codex-execve-wrapper"


class Interception:
    """What was found out: `way` is NOTIFY, WRAPPER or why no command may run; `reason` why it is not NOTIFY.

    `wrapper` is the path of the wrapper program where there is one.
    """

    __slots__ = ("_folder", "reason", "way", "wrapper")

    def __init__(self, way: int | str, wrapper: str = "", reason: str = "", folder: str = "") -> None:
        self.way = way
        self.wrapper = wrapper
        self.reason = reason
        self._folder = folder

    def close(self) -> None:
        """Remove the link that was made."""
        if self._folder:
            try:
                os.unlink(self.wrapper)
                os.rmdir(self._folder)
            except OSError:
                pass  # somebody tidied up before


def find_interception(bash: str, execve: str | None, paths: ExecServerRuntimePaths) -> Interception:
    """Return how programs that `bash` starts are noticed; `execve` is a wrapper that was named, or None."""
    choice = choose(bash)
    if choice.interception is None:
        return Interception(choice.reason)
    if choice.interception != WRAPPER:
        return Interception(choice.interception, execve or "")
    beside = os.path.join(os.path.dirname(paths.codex_self_exe), WRAPPER_NAME)
    if execve is not None or os.access(beside, os.X_OK):
        return Interception(WRAPPER, execve or beside, choice.reason)
    try:
        folder = _new_folder()
        return Interception(WRAPPER, _make_wrapper(folder, paths.codex_self_exe), choice.reason, folder)
    except OSError as error:
        return Interception(f"{choice.reason}; and no link for the wrapper can be made: {error.strerror}")


def _new_folder() -> str:
    import tempfile  # late: needed on few machines

    return tempfile.mkdtemp(prefix="execserver-wrapper-")


def _make_wrapper(folder: str, program: str) -> str:
    """Make what starts this program as the wrapper, by its path alone; return the path."""
    path = os.path.join(folder, WRAPPER_NAME)
    if os.access(program, os.X_OK):
        os.symlink(program, path)
        return path
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(
            f"{script_head(sys.executable)}import sys\nsys.argv[0] = {WRAPPER_NAME!r}\n"
            f"sys.path.insert(0, {root!r})\nfrom execserver.dispatch import main\nsys.exit(main())\n"
        )
    os.chmod(path, 0o755)
    return path


def script_head(python: str) -> str:
    """Return the first lines of a Python script that `python` runs, isolated and without its packages."""
    first = f"#!{python} -IS\n"
    # The kernel cuts an interpreter's path at a space, and the line at 127 bytes before Linux 5.1.
    if not any(map(str.isspace, python)) and len(os.fsencode(first)) < 127:
        return first
    quoted = python.replace("'", "'\"'\"'")
    # For Python a string, for the shell a command that puts Python in the shell's place.
    return f"#!/bin/sh\n''':'\nexec '{quoted}' -IS \"$0\" \"$@\"\n'''\n"
