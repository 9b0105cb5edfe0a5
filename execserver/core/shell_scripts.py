"""The scripts of shell snapshots: what prints a shell's state, and what restores it.  Pure.

A capture prints sections, each behind a line that begins with a number nobody can guess; what start-up files
print comes before the first one and is ignored.  Restoring evaluates the state from variables, which every
back end of the sandbox passes on; they are unset before the command's own first line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

FUNCTIONS, OPTIONS, TOGGLES, ALIASES, EXPORTS, END = (
    "functions",
    "options",
    "toggles",
    "aliases",
    "exports",
    "end",
)
STATE_VARIABLE = b"__CODEX_SHELL_SNAPSHOT_STATE_"
PART_BYTES = 96 * 1024  # of one variable: Linux takes 128 KiB with its name

# Options that make sense in a shell that is neither interactive nor a login shell.
_POSIX_OPTIONS = frozenset(
    b"allexport braceexpand errexit errtrace functrace hashall keyword noclobber noglob nounset physical"
    b" pipefail posix verbose xtrace".split()
)
_ZSH_OWN = frozenset(
    b"interactive monitor privileged restricted shinstdin singlecommand zle banghist hashdirs"
    b" exec promptsp promptcr".split()
)
_OPTION = re.compile(rb"set [-+]o (\w+)")
_TOGGLE = re.compile(rb"shopt -[su] (\w+)")
_FIXED_TOGGLES = frozenset({b"login_shell", b"restricted_shell"})
_POSIX_ALIAS = re.compile(rb"[\w.!%,@-]+='[^'\n]*'")


class Shell(NamedTuple):
    """One family of shells: how its state is printed, its options filtered, and a command started."""

    only_if: str  # a test that fails in shells of other families
    sections: tuple[tuple[str, str], ...]
    option: Callable[[bytes], bool]
    flags: str
    first: str


def _posix_option(line: bytes) -> bool:
    found = _OPTION.fullmatch(line)
    return found is not None and found[1] in _POSIX_OPTIONS


def _zsh_option(line: bytes) -> bool:
    found = _OPTION.fullmatch(line)
    return found is not None and found[1].replace(b"_", b"").lower().removeprefix(b"no") not in _ZSH_OWN


_EXPORTED = (EXPORTS, "command env -0")
SHELLS = {
    "bash": Shell(
        '[ -n "${BASH_VERSION-}" ]',
        (
            (OPTIONS, "set +o; set +eux"),
            (TOGGLES, "shopt -p"),
            (FUNCTIONS, "declare -f; declare -Fx"),
            (ALIASES, "alias -p"),
            _EXPORTED,
        ),
        _posix_option,
        "-pc",
        "set +o privileged\n",
    ),
    "zsh": Shell(
        '[ -n "${ZSH_VERSION-}" ]',
        (
            (OPTIONS, "set +o; set +eux"),
            (FUNCTIONS, "functions"),
            (ALIASES, "alias -L"),
            _EXPORTED,
        ),
        _zsh_option,
        "-fc",
        # zsh has aliases from the start, and would expand one that has the name of a function.
        "setopt no_aliases; unalias -m '*'; ",
    ),
    "sh": Shell(
        ":",
        ((OPTIONS, "set +o; set +eux"), (ALIASES, "alias"), _EXPORTED),
        _posix_option,
        "-c",
        "",
    ),
}


def capture_script(shell: Shell, mark: str) -> str:
    """Return what prints the state; `mark` begins the line before each section."""
    lines = [f"{shell.only_if} || exit 1", "unset HISTFILE"]
    for name, command in (*shell.sections, (END, ":")):
        lines += [f"printf '\\n%s\\n' '{mark}:{name}'", command]
    return "\n".join(lines)


def state_script(family: str, sections: dict[str, bytes]) -> bytes:
    """Return the script that restores what the sections say, but for exports."""
    shell = SHELLS[family]
    parts = [sections.get(FUNCTIONS, b"")]
    parts += [line for line in sections.get(TOGGLES, b"").splitlines() if _is_toggle(line)]
    parts += [line for line in sections.get(OPTIONS, b"").splitlines() if shell.option(line)]
    aliases = sections.get(ALIASES, b"")
    if family == "sh":
        found = [line.removeprefix(b"alias ") for line in aliases.splitlines()]
        parts += [b"alias " + line for line in found if _POSIX_ALIAS.fullmatch(line)]
    else:
        parts.append(aliases)
    return b"\n".join([*parts, b":\n"])


def restoring_script(shell: Shell, count: int, command: str) -> str:
    """Return a command behind what restores the state from `count` variables."""
    names = [f"{STATE_VARIABLE.decode()}{number}" for number in range(count)]
    state = "".join(f"${{{name}}}" for name in names)
    failed = "printf 'failed to restore shell snapshot\\n' >&2"
    return (
        f'{shell.first}if ! eval "{state}" >/dev/null; then {failed}; fi\nunset {" ".join(names)}\n{command}'
    )


def _is_toggle(line: bytes) -> bool:
    found = _TOGGLE.fullmatch(line)
    return found is not None and found[1] not in _FIXED_TOGGLES
