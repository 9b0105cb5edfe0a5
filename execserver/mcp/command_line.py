"""The command line of the shell tool's server (shell tool contract)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from execserver.arguments import Mistake, Program, read_table
from execserver.leaving import failure
from execserver.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAM = "codex-exec-mcp-server"
BASH_VARIABLE = "CODEX_BASH_PATH"

HELP = """\
Serve one tool, `shell`, to an MCP client on stdin and stdout: it runs commands in a sandboxed Bash. Rules and
the client's user decide which programs may run, and which of them outside the sandbox.

Usage: codex-exec-mcp-server [OPTIONS]
       execserver mcp [OPTIONS]

Options:
  --bash <PATH>             The Bash to run; any works [default: CODEX_BASH_PATH, else the system's]
  --execve <PATH>           What a patched Bash starts in place of every program, on machines where the
                            kernel does not report which programs start [default: this program itself]
  --preserve-program-paths  Match rules against the whole path of a program, never its file name.
  --network-rules <FILE>    Let commands reach only what this file of rules lists (TOML: allow, deny, review);
                            the user is asked about what is in review. See docs/network.md.
  -V, --version             Print the version and exit.
  -h, --help                Print this text and exit.

Environment:
  CODEX_HOME                Where the folder `rules` is [default: ~/.codex]
  EXECSERVER_LOG            Log level: off, error, warn, info, debug or trace [default: warn]. RUST_LOG is
                            read too. The log goes to stderr.

`execserver rules check` shows what the rules decide about a command, `execserver doctor` what sandbox works
here.

The end of the input, SIGTERM and SIGINT end everything that runs and exit with 0. Other exit codes: 1 cannot
serve, 2 wrong usage.
"""

_FOLDERS = ("/bin", "/usr/bin")
_NO_BASH = (
    f"no Bash found in PATH, {' or '.join(_FOLDERS)}: install one, or name one with --bash or {BASH_VARIABLE}"
)


class Options(NamedTuple):
    """The command line as values; `bash` is the path of an existing Bash.

    `execve` is the exec wrapper for patched shells, None for this program's own.  With
    `preserve_program_paths`, rules are matched against the whole path of a program only.  `network_rules` is
    the file that says what commands may reach, None without one.
    """

    bash: str
    execve: str | None = None
    preserve_program_paths: bool = False
    network_rules: str | None = None


def parse(argv: list[str], environ: Mapping[str, str]) -> Options:
    """Return the options.

    Raises Leave for help and version, for every mistake, and if there is no Bash.
    """
    # The name of the reference server in its `--version`: its launcher and its users look for it.
    program = Program(PROGRAM, read_table(HELP), lambda: HELP, f"codex-exec-server {__version__}\n")
    values = program.parse(argv).options
    for name, value in values.items():
        if not value and name != "--preserve-program-paths":
            shown = program.table[name].shown
            raise program.mistaken(Mistake(f"a value is required for '{shown}' but none was supplied", None))
    bash = values.get("--bash") or environ.get(BASH_VARIABLE) or _system_bash(environ)
    return Options(
        *(bash, values.get("--execve"), "--preserve-program-paths" in values, values.get("--network-rules"))
    )


def _system_bash(environ: Mapping[str, str]) -> str:
    # With a relative entry of PATH the choice would depend on the directory the server was started in.
    in_path = [folder for folder in environ.get("PATH", "").split(os.pathsep) if folder.startswith("/")]
    for folder in (*in_path, *_FOLDERS):
        file = os.path.join(folder, "bash")
        if os.path.isfile(file) and os.access(file, os.X_OK):
            return file
    raise failure(_NO_BASH)
