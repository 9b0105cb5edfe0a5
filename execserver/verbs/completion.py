"""`execserver completion SHELL`: completes verbs, options and boxes in bash, zsh and fish.

The scripts are made of the help texts, so they know what this very program knows.  They ask it for the names
of boxes while a person types; that reads the boxes file and connects to nothing.
"""

from __future__ import annotations

import os
import sys

from execserver.arguments import Mistake, Program, read_table
from execserver.leaving import until_left, write

HELP = """\
Print what a shell needs to complete verbs, options and boxes.

Usage: execserver completion <bash|zsh|fish|boxes>

Options:
  -h, --help                Print this text and exit.

For one shell:    source <(execserver completion bash)
For every shell:  execserver completion bash > ~/.local/share/bash-completion/completions/execserver
                  execserver completion zsh > DIR/_execserver, where DIR is in fpath
                  execserver completion fish > ~/.config/fish/completions/execserver.fish
`boxes` prints the names of the boxes, a line each, which the scripts ask for.
"""

_WITH_BOX = ("run", "shell", "ps", "attach", "logs", "wait", "kill", "forward", "web")
_BASH = """\
_execserver() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} word
    COMPREPLY=()
    if (( COMP_CWORD == 1 )); then
        COMPREPLY=($(compgen -W '{verbs}' -- "$cur"))
        return
    fi
    for word in "${{COMP_WORDS[@]:2:COMP_CWORD-2}}"; do
        if [[ $word == -- ]]; then
            COMPREPLY=($(compgen -c -f -- "$cur"))
            return
        fi
    done
    case ${{COMP_WORDS[1]}}:$cur in
{cases}
        {with_box})
            word=$("${{COMP_WORDS[0]}}" completion boxes 2>/dev/null)
            COMPREPLY=($(compgen -W "$word" -- "$cur")) ;;
        help:*) COMPREPLY=($(compgen -W '{verbs}' -- "$cur")) ;;
        *) COMPREPLY=($(compgen -f -- "$cur")) ;;
    esac
}}
complete -F _execserver execserver
"""
_ZSH = """\
#compdef execserver
_execserver() {{
    if (( CURRENT == 2 )); then
        compadd -- {verbs}
        return
    fi
    if (( ${{words[(I)--]}} > 0 && ${{words[(I)--]}} < CURRENT )); then
        shift ${{words[(i)--]}} words
        (( CURRENT = ${{#words}} ))
        _normal
        return
    fi
    case ${{words[2]}}:${{words[CURRENT]}} in
{cases}
        {with_box}) compadd -- ${{(f)"$(${{words[1]}} completion boxes 2>/dev/null)"}} ;;
        help:*) compadd -- {verbs} ;;
        *) _files ;;
    esac
}}
if [[ ${{funcstack[1]}} == _execserver ]]; then _execserver "$@"; else compdef _execserver execserver; fi
"""
_FISH_HEAD = """\
complete -c execserver -n __fish_use_subcommand -f -a '{verbs}'
set -l boxes '(execserver completion boxes 2>/dev/null)'
complete -c execserver -n '__fish_seen_subcommand_from {with_box}' -f -a $boxes
complete -c execserver -n '__fish_seen_subcommand_from help' -f -a '{verbs}'
"""


def main() -> int:
    """Print a script or the names of boxes; return 0, 1 if they cannot be read, 2 for wrong usage."""
    return until_left(_main)


def _main() -> int:
    usage = "<bash|zsh|fish|boxes>"
    program = Program("execserver completion", read_table(HELP), lambda: HELP, "", ("<SHELL>",), usage=usage)
    (shell,) = program.parse(sys.argv[1:]).operands
    makers = {"bash": _bash, "zsh": _zsh, "fish": _fish, "boxes": _boxes}
    if shell not in makers:
        raise program.mistaken(Mistake(f"invalid value '{shell}': bash, zsh, fish or boxes"))
    write(1, makers[shell]())
    return 0


def _boxes() -> str:
    from execserver.box import book

    try:
        return "".join(f"{name}\n" for name in book.entries(book.default_path(os.environ)))
    except book.BookError:
        return ""  # `box list` says why; here a person is typing


def _options() -> dict[str, list[str]]:
    """Return the options of each verb that has a text of its own."""
    from execserver.verbs.help import TEXTS, text

    return {verb: list(read_table(text(place))) for verb, place in TEXTS.items()}


def _verbs() -> str:
    from execserver.dispatch import VERBS

    return " ".join(sorted(VERBS))


def _bash() -> str:
    line = "        {verb}:-*) COMPREPLY=($(compgen -W '{options}' -- \"$cur\")) ;;"
    return _BASH.format(verbs=_verbs(), cases=_cases(line), with_box=_patterns())


def _zsh() -> str:
    return _ZSH.format(
        verbs=_verbs(), cases=_cases("        {verb}:-*) compadd -- {options} ;;"), with_box=_patterns()
    )


def _cases(line: str) -> str:
    return "\n".join(line.format(verb=verb, options=" ".join(names)) for verb, names in _options().items())


def _patterns() -> str:
    return "|".join(f"{verb}:*" for verb in _WITH_BOX)


def _fish() -> str:
    lines = [
        f"complete -c execserver -n '__fish_seen_subcommand_from {verb}' -l {name.removeprefix('--')}"
        for verb, names in _options().items()
        for name in names
    ]
    return _FISH_HEAD.format(verbs=_verbs(), with_box=" ".join(_WITH_BOX)) + "\n".join([*lines, ""])
