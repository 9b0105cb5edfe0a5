"""Which commands need the user's approval although no rule names them (shell tool contract).

A convenience, no protection: it knows a few commands that lose work, in the forms users and programs usually
write.  The sandbox is the boundary.  The program is compared as it was written, so of programs given by their
path only git (any path that ends with it) and the shells are recognized.
"""

from __future__ import annotations

from execserver.rules.plain_script import plain_commands

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPT_CHARACTERS = 128 * 1024  # the kernel's limit for one argument; a longer script is not examined

_SHELLS = ("bash", "sh", "zsh")
_SCRIPT_FLAGS = ("-c", "-lc")

# Options before git's subcommand whose value is the next word.
_GIT_VALUED = (
    *("-C", "-c", "--config-env", "--exec-path", "--git-dir"),
    *("--namespace", "--super-prefix", "--work-tree"),
)
# Subcommand -> its long options (with or without a value), its short ones (alone or combined), and the signs
# at the beginning of a refspec that make it overwrite or delete.  None: the subcommand is always dangerous.
_GIT_DANGERS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]] | None] = {
    "reset": None,
    "rm": None,
    "branch": (("--delete",), "dD", ()),
    "push": (("--force", "--force-with-lease", "--force-if-includes", "--delete"), "fd", ("+", ":")),
    "clean": (("--force",), "f", ()),
}


def is_never_dangerous(program: str) -> bool:
    """Return whether a program needs no approval whatever its arguments are; False may be wrong."""
    if program in ("sudo", "rm") or program.endswith("git"):
        return False
    return program.rpartition("/")[2] not in _SHELLS


def might_be_dangerous(words: Sequence[str]) -> bool:
    """Return whether a command (program first) needs approval although no rule says so."""
    if _is_dangerous(words):
        return True
    if len(words) != 3 or words[1] not in _SCRIPT_FLAGS or len(words[2]) > SCRIPT_CHARACTERS:
        return False
    if words[0].rpartition("/")[2] not in _SHELLS:
        return False
    return any(_is_dangerous(command) for command in plain_commands(words[2]) or ())


def _is_dangerous(words: Sequence[str]) -> bool:
    start = 0
    while start < len(words) and words[start] == "sudo":
        start += 1
    if start + 1 >= len(words):
        return False
    program = words[start]
    if program == "rm":
        return words[start + 1] in ("-f", "-rf")
    return program.endswith("git") and _git_is_dangerous(words[start + 1 :])


def _git_is_dangerous(words: Sequence[str]) -> bool:
    rest = iter(words)
    for word in rest:
        if word in _GIT_VALUED:
            next(rest, None)
        elif not word.startswith("-"):
            if word not in _GIT_DANGERS:
                return False
            danger = _GIT_DANGERS[word]
            return danger is None or any(_loses_work(argument, *danger) for argument in rest)
    return False


def _loses_work(argument: str, long: tuple[str, ...], short: str, signs: tuple[str, ...]) -> bool:
    if argument.startswith("--"):
        return argument.partition("=")[0] in long
    if argument.startswith("-"):
        return any(letter in short for letter in argument)
    return len(argument) > 1 and argument.startswith(signs)
