"""How this server learns which programs its shells start: chosen once, before gevent is loaded.

If the kernel reports them (seccomp user notification), nothing else is needed.  Otherwise a shell with the
wrapper patch has to start the exec wrapper, which is this program under another name: a symlink beside the
program if there is one, else a symlink that exists as long as the server.  If neither works, every call is
refused with the reason and the remedy.
"""

from __future__ import annotations

import os
import sys

from execserver.zygote.supervision.probe import choose
from execserver.zygote.supervision.records import WRAPPER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.runtime_paths import ExecServerRuntimePaths

WRAPPER_NAME = "codex-execve-wrapper"


class Interception:
    """How execs are intercepted here.

    `way` is NOTIFY, WRAPPER, or a text that says why no command may run; `reason` says why it is not NOTIFY.
    `wrapper` is the path of the exec wrapper, empty without one.
    """

    __slots__ = ("_folder", "reason", "way", "wrapper")

    def __init__(self, way: int | str, wrapper: str = "", reason: str = "", folder: str = "") -> None:
        self.way = way
        self.wrapper = wrapper
        self.reason = reason
        self._folder = folder  # made by this server; empty if the wrapper was there before

    def close(self) -> None:
        """Remove the symlink, if this server made one."""
        if self._folder:
            try:
                os.unlink(self.wrapper)
                os.rmdir(self._folder)
            except OSError:
                pass  # somebody else has removed it, as cleaners of temporary directories do


def find_interception(bash: str, execve: str | None, paths: ExecServerRuntimePaths) -> Interception:
    """Return how programs that `bash` starts are intercepted; `execve` is the wrapper the user named."""
    # `choose` forks probes, which needs a process with one thread: hence before gevent is loaded.
    choice = choose(bash)
    if choice.interception is None:
        return Interception(choice.reason)
    if choice.interception != WRAPPER:
        return Interception(choice.interception, execve or "")
    # `execserver install-aliases` makes this symlink.
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
    """Make a file that starts this program as the exec wrapper; return its path.

    The patched shell executes a path and passes no arguments of its own, so the name must say it all.
    """
    path = os.path.join(folder, WRAPPER_NAME)
    if os.access(program, os.X_OK):
        os.symlink(program, path)  # the dispatcher goes by argv[0]
        return path
    # From a checkout the program is a Python file without the right to be executed: write a script instead.
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(
            f"{script_head(sys.executable)}import sys\nsys.argv[0] = {WRAPPER_NAME!r}\n"
            f"sys.path.insert(0, {root!r})\nfrom execserver.dispatch import main\nsys.exit(main())\n"
        )
    os.chmod(path, 0o755)
    return path


def script_head(python: str) -> str:
    """Return the first lines of a Python script that `python` runs isolated and without its site packages."""
    first = f"#!{python} -IS\n"
    # The kernel ends an interpreter's path at a space, and the line after 127 bytes before Linux 5.1.
    if not any(map(str.isspace, python)) and len(os.fsencode(first)) < 127:
        return first
    quoted = python.replace("'", "'\"'\"'")
    # To Python these lines are a string; to the shell they are a command that replaces it with Python.
    return f"#!/bin/sh\n''':'\nexec '{quoted}' -IS \"$0\" \"$@\"\n'''\n"
