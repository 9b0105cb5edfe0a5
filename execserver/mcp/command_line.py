"""The command line of the shell tool's server (shell tool contract, section 1)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from execserver import __version__, arguments

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAM = "codex-exec-mcp-server"
BASH_VARIABLE = "CODEX_BASH_PATH"

HELP = """\
Serve one tool, `shell`, to an MCP client on stdin and stdout: it runs commands in a sandboxed Bash, and rules
and the person at the client decide which programs may run, and which of them outside of the sandbox.

Usage: codex-exec-mcp-server [OPTIONS]
       execserver mcp [OPTIONS]

Options:
  --bash <PATH>             The Bash to run; any one will do [default: CODEX_BASH_PATH, else the system's]
  --execve <PATH>           What a patched Bash shall start in place of every program, on machines where the
                            kernel does not tell which programs are started [default: this program itself]
  --preserve-program-paths  Match rules against the whole path of a program, never its file name.
  -V, --version             Print the version and exit.
  -h, --help                Print this text and exit.

Environment:
  CODEX_HOME                Where the folder `rules` is [default: ~/.codex]
  EXECSERVER_LOG            Log level: off, error, warn, info, debug or trace [default: warn]. RUST_LOG is
                            read too. The log goes to stderr.

`execserver rules check` says what the rules make of a command, `execserver doctor` what sandbox works here.

The end of the input, SIGTERM and SIGINT end everything that runs and exit with 0. Other exit codes: 1 cannot
serve, 2 wrong usage.
"""

_FOLDERS = ("/bin", "/usr/bin")
_NO_BASH = (
    f"no Bash found in PATH, {' or '.join(_FOLDERS)}: install one, or name one with --bash or {BASH_VARIABLE}"
)


class Leave(Exception):
    """The command line decides the outcome: the status, and what to print where."""

    def __init__(self, status: int, *, stdout: str = "", stderr: str = "") -> None:
        super().__init__(stderr or stdout)
        self.status = status
        self.stdout = stdout
        self.stderr = stderr


class Options(NamedTuple):
    """The command line as values, `bash` found already.

    `execve` is the wrapper for shells that are patched, None for this program's own.
    `preserve_program_paths`: rules are matched against the whole path of a program only.
    """

    bash: str
    execve: str | None = None
    preserve_program_paths: bool = False


def parse(argv: list[str], environ: Mapping[str, str]) -> Options:
    """Return the options.

    Raises Leave for help and version, for every mistake, and where there is no Bash.
    """
    checked = arguments.check(argv, arguments.read_table(HELP, frozenset(), {}))
    if isinstance(checked, arguments.Mistake):
        raise Leave(2, stderr=checked.text(PROGRAM))
    if "--help" in checked:
        raise Leave(0, stdout=HELP)
    if "--version" in checked:
        # The reference's name for itself: its launcher and its users look for it.
        raise Leave(0, stdout=f"codex-exec-server {__version__}\n")
    values = dict(word.partition("=")[::2] for word in checked)
    for name, value in values.items():
        if not value and name != "--preserve-program-paths":
            mistake = arguments.Mistake(
                f"a value is required for '{name} <PATH>' but none was supplied", None
            )
            raise Leave(2, stderr=mistake.text(PROGRAM))
    bash = values.get("--bash") or environ.get(BASH_VARIABLE) or _system_bash(environ)
    return Options(bash, values.get("--execve"), "--preserve-program-paths" in values)


def _system_bash(environ: Mapping[str, str]) -> str:
    # A relative entry of PATH would make the choice depend on the folder the server was started in.
    in_path = [folder for folder in environ.get("PATH", "").split(os.pathsep) if folder.startswith("/")]
    for folder in (*in_path, *_FOLDERS):
        file = os.path.join(folder, "bash")
        if os.path.isfile(file) and os.access(file, os.X_OK):
            return file
    raise Leave(1, stderr=f"Error: {_NO_BASH}\n")
