"""The choice of the program this process is to be: by the name it was called with, or by its first argument.

Imports nothing but `os` and `sys` before the choice is made, so that a helper never pays for the server.
"""

from __future__ import annotations

import os
import sys

SERVER = "execserver.cli:main"
VERSION = "execserver.version:main"
SHELL_TOOL = "execserver.mcp.main:main"

# Name in argv[0] -> entry.  An entry finds its arguments in `sys.argv[1:]` and returns the exit status; None
# stands for a name other programs know that this build does not serve yet.
NAMES: dict[str, str | None] = {
    "codex-exec-server": SERVER,
    "codex-fs": "helpers.codex_fs:main",
    "codex-linux-sandbox": "helpers.linux_sandbox:main",
    "codex-exec-mcp-server": SHELL_TOOL,
    "codex-execve-wrapper": "helpers.execve_wrapper:main",
}

# First argument -> entry: the verbs of the help text, ...
VERBS = {
    "doctor": "execserver.verbs.doctor:main",
    "relay": "execserver.verbs.relay:main",
    "mcp": SHELL_TOOL,
    "rules": "execserver.verbs.rules:main",
    "self-test": "execserver.verbs.self_test:main",
    "install-aliases": "execserver.verbs.aliases:main",
}
# ... and the hidden ones, for the server's own use and for callers that cannot choose argv[0].
ARGUMENTS: dict[str, str | None] = {
    **VERBS,
    "--execserver-zygote": "helpers.zygote:main",
    "--execserver-fs-worker": "helpers.fs_worker:main",
    "--codex-run-as-fs-helper": NAMES["codex-fs"],
    **NAMES,
}

_UNAVAILABLE_STATUS = 2
_COERCED_LOCALES = ("C.UTF-8", "C.utf8", "UTF-8")


class NotInThisBuild(Exception):
    """The caller asked for a program that is not built yet."""


def choose(argv: list[str]) -> tuple[str, list[str]]:
    """Return the entry, `module:function`, and its arguments for a command line.

    The server's other name is no more than that, so that a copy of this file with that name can start itself
    as zygote.  Raises NotInThisBuild with the text to show.
    """
    name = os.path.basename(argv[0]) if argv else ""
    if NAMES.get(name, SERVER) != SERVER:
        return _available(name, NAMES[name]), argv[1:]
    if len(argv) > 1 and argv[1] in ARGUMENTS:
        return _available(argv[1], ARGUMENTS[argv[1]]), argv[2:]
    if argv[1:] in (["--version"], ["-V"]):
        return (
            VERSION,
            [],
        )  # asked often, by people and by scripts: loading the command line takes as long again
    return SERVER, argv[1:]


def main() -> int:
    """Run the chosen program and return its exit status."""
    _take_back_locale()
    try:
        entry, arguments = choose(sys.argv)
    except NotInThisBuild as error:
        sys.stderr.write(f"Error: {error}\n")
        return _UNAVAILABLE_STATUS
    module, _, function = entry.partition(":")
    __import__(module)
    sys.argv[1:] = arguments
    status: int = getattr(sys.modules[module], function)()
    return status


def _take_back_locale() -> None:
    """Undo what the interpreter does to LC_CTYPE where no locale is set; what we start sees what we got."""
    if os.environ.get("LC_CTYPE") not in _COERCED_LOCALES:
        return
    try:
        with open("/proc/self/environ", "rb") as file:
            given = [entry for entry in file.read().split(b"\0") if entry.startswith(b"LC_CTYPE=")]
    except OSError:
        return
    if given:
        os.environb[b"LC_CTYPE"] = given[0].partition(b"=")[2]
    else:
        del os.environ["LC_CTYPE"]


def _available(name: str, entry: str | None) -> str:
    if entry is None:
        raise NotInThisBuild(f"{name} is not in this build of execserver")
    return entry
