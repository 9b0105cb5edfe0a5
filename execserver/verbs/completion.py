"""`execserver completion SHELL`: completes verbs, options and boxes in bash, zsh and fish.

The scripts are made of the help texts, so they know what this very program knows.  They ask it for the names
of boxes while a person types; that reads the boxes file and connects to nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from execserver.arguments import Mistake, Option, Program, read_table
from execserver.leaving import put, until_left

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

# What an option takes, by the name of its value in the help text: words to choose from, files or boxes.
_FILES, _BOXES = "files", "boxes"
_TAKEN = {
    "<FILE>": _FILES,
    "<BOX>": _BOXES,
    "<POLICY>": "read-only workspace-write",
    "<SIGNAL>": "HUP INT QUIT TERM KILL USR1 USR2 CONT STOP WINCH",
}
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
    case ${{COMP_WORDS[1]}}:${{COMP_WORDS[COMP_CWORD-1]}} in
{values}
    esac
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
    case ${{words[2]}}:${{words[CURRENT-1]}} in
{values}
    esac
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
    put(makers[shell]())
    return 0


def _boxes() -> str:
    from execserver.box import book

    try:
        return "".join(f"{name}\n" for name in book.entries(book.default_path(os.environ)))
    except book.BookError:
        return ""  # `box list` says why; here a person is typing


def _options() -> dict[str, dict[str, Option]]:
    """Return the options of each verb that has a text of its own."""
    from execserver.verbs.help import TEXTS, text

    return {verb: read_table(text(place)) for verb, place in TEXTS.items()}


def _verbs() -> str:
    from execserver.dispatch import VERBS

    return " ".join(sorted(VERBS))


def _bash() -> str:
    line = "        {verb}:-*) COMPREPLY=($(compgen -W '{options}' -- \"$cur\")) ;;"
    values = _values(_bash_value)
    return _BASH.format(verbs=_verbs(), values=values, cases=_cases(line), with_box=_patterns())


def _bash_value(taken: str) -> str:
    boxes = '-W "$("${COMP_WORDS[0]}" completion boxes 2>/dev/null)"'
    generated = {_FILES: "-f", _BOXES: boxes}.get(taken, f"-W '{taken}'")
    return f'COMPREPLY=($(compgen {generated} -- "$cur"))'


def _zsh() -> str:
    line = "        {verb}:-*) compadd -- {options} ;;"
    values = _values(_zsh_value)
    return _ZSH.format(verbs=_verbs(), values=values, cases=_cases(line), with_box=_patterns())


def _zsh_value(taken: str) -> str:
    boxes = 'compadd -- ${(f)"$(${words[1]} completion boxes 2>/dev/null)"}'
    return {_FILES: "_files", _BOXES: boxes}.get(taken, f"compadd -- {taken}")


def _values(complete: Callable[[str], str]) -> str:
    """Return a case for each option that takes a value; `complete` says how, by what the option takes."""
    lines = []
    for verb, options in _options().items():
        for option in filter(lambda each: each.value, options.values()):
            names = "|".join(f"{verb}:{name}" for name in (option.short, option.name) if name)
            lines.append(f"        {names}) {complete(_taken(option))}; return ;;")
    return "\n".join(lines)


def _taken(option: Option) -> str:
    """Return what an option takes, "" if only a person knows."""
    return _TAKEN.get(option.value or "", "")


def _cases(line: str) -> str:
    return "\n".join(line.format(verb=verb, options=" ".join(names)) for verb, names in _options().items())


def _patterns() -> str:
    return "|".join(f"{verb}:*" for verb in _WITH_BOX)


def _fish() -> str:
    lines = [
        f"complete -c execserver -n '__fish_seen_subcommand_from {verb}' {_fish_option(option)}"
        for verb, options in _options().items()
        for option in options.values()
    ]
    return _FISH_HEAD.format(verbs=_verbs(), with_box=" ".join(_WITH_BOX)) + "\n".join([*lines, ""])


def _fish_option(option: Option) -> str:
    short = f"-s {option.short.removeprefix('-')} " if option.short else ""
    taken = _taken(option)
    acts = {_FILES: " -r -F", _BOXES: " -x -a $boxes", "": " -x"}
    value = acts.get(taken, f" -x -a '{taken}'") if option.value else ""
    return f"{short}-l {option.name.removeprefix('--')}{value}"
