"""`codex`: the command line of the Codex CLI, as far as it is about `exec-server`.

Who starts `codex exec-server ...` by that name gets this server; so does `execserver exec-server ...`.  Every
other verb of the Codex CLI is refused with a text that says which program this is.
"""

from __future__ import annotations

import os
import sys

from execserver.dispatch import without_verb
from execserver.leaving import WRONG_USAGE, Leave, until_left
from execserver.version import CONTRACT_VERSION_VARIABLE, __version__, contract_version

NAME = "codex exec-server"
_HELP = """\
This `codex` is execserver, which has one of its commands.

Usage: codex exec-server [OPTIONS]

Commands:
  exec-server  Run commands and edit files on this machine for a Codex client

Options:
  -V, --version  Print version
  -h, --help     Print help

`codex exec-server --help` tells the options. The other commands are those of the Codex CLI.
"""


def main() -> int:
    """Be `codex`: serve, or tell what there is; return the exit status."""
    return until_left(lambda: _main(sys.argv[1:]))


def serve() -> int:
    """Be `codex exec-server`, whose words are the arguments; return the exit status."""
    from execserver.cli import main as serve_as  # late: what is refused, and the version, come without it

    words = sys.argv[1:]
    asks = words[:1] == ["help"]
    if words[asks : asks + 1] == ["forward"]:
        from execserver.verbs.forward import main as forward  # late: few use it

        return forward(["--help"] if asks else words[1:])
    return serve_as(["--help"] if asks else words, NAME)


def _main(words: list[str]) -> int:
    if (behind := without_verb(words)) is not None:
        sys.argv[1:] = behind
        return serve()
    if words[:1] in (["--version"], ["-V"]):
        raise Leave(0, stdout=f"codex-cli {_version()} (execserver {__version__})\n")
    if words[:1] in (["--help"], ["-h"], ["help"]):
        raise Leave(0, stdout=_HELP)
    shown = f"`codex {words[0]}`" if words else "`codex` without a command"
    raise Leave(
        WRONG_USAGE,
        stderr=f"error: {shown} is not here: this codex is execserver, which has `codex exec-server` only\n"
        "\nFor the other commands install the Codex CLI, or call it by its full path.\n",
    )


def _version() -> str:
    return contract_version(os.environ.get(CONTRACT_VERSION_VARIABLE, ""))
