"""`execserver completion SHELL`: completes verbs, options and boxes in bash, zsh and fish.

The scripts are made of the help texts, so they know what this very program knows.  They ask it for the names
of boxes while a person types; that reads the boxes file and connects to nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable

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
    "<STREAMS>": "output all",
    "<WHEN>": "adaptive always never",
    "<SIGNAL>": "HUP INT QUIT TERM KILL USR1 USR2 CONT STOP WINCH",
}
_WITH_BOX = ("run", "shell", "ps", "attach", "logs", "wait", "kill", "forward", "web")
_WITH_PATH = ("cp", "sync", "edit", "find", "grep")  # here, or behind the name of a box and a colon
_SECOND_WORDS = {
    "audit": "verify show cast",
    "box": "add list remove",
    "completion": "bash zsh fish",
    "network": "log",
    "rules": "check",
    "token": "new narrow list revoke",
}
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
            COMPREPLY=($(compgen -c -- "$cur"))
            _execserver_files
            return
        fi
    done
    case ${{COMP_WORDS[1]}}:${{COMP_WORDS[COMP_CWORD-1]}} in
{values}
    esac
    case ${{COMP_WORDS[1]}}:$cur in
{cases}
        {with_box}) _execserver_boxes ;;
        {with_path}) _execserver_paths ;;
        help:*) COMPREPLY=($(compgen -W '{verbs}' -- "$cur")) ;;
        *)
            case $COMP_CWORD:${{COMP_WORDS[1]}}:${{COMP_WORDS[2]}} in
{seconds}
                3:box:remove) _execserver_boxes ;;
                *) _execserver_files ;;
            esac ;;
    esac
}}
_execserver_boxes() {{
    COMPREPLY=($(compgen -W "$("${{COMP_WORDS[0]}}" completion boxes 2>/dev/null)" -- "$cur"))
}}
_execserver_files() {{
    compopt -o default 2>/dev/null  # bash itself knows about slashes behind folders, spaces and quotes
}}
_execserver_paths() {{
    [[ $cur == :* || ${{COMP_WORDS[COMP_CWORD-1]}} == : ]] && return  # bash splits words at a colon
    _execserver_boxes
    if (( ${{#COMPREPLY[@]}} == 0 )); then
        _execserver_files
        return
    fi
    COMPREPLY=("${{COMPREPLY[@]/%/:}}" $(compgen -f -- "$cur"))
    compopt -o nospace 2>/dev/null
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
        {with_box}) _execserver_boxes ;;
        {with_path})
            [[ ${{words[CURRENT]}} == *:* ]] || _execserver_boxes -S :
            _files ;;
        help:*) compadd -- {verbs} ;;
        *)
            case $CURRENT:${{words[2]}}:${{words[3]}} in
{seconds}
                4:box:remove) _execserver_boxes ;;
                *) _files ;;
            esac ;;
    esac
}}
_execserver_boxes() {{
    compadd "$@" -- ${{(f)"$(${{words[1]}} completion boxes 2>/dev/null)"}}
}}
if [[ ${{funcstack[1]}} == _execserver ]]; then _execserver "$@"; else compdef _execserver execserver; fi
"""
_FISH_HEAD = """\
complete -c execserver -n __fish_use_subcommand -f -a '{verbs}'
set -l boxes '(execserver completion boxes 2>/dev/null)'
complete -c execserver -n '__fish_seen_subcommand_from {with_box}' -f -a $boxes
complete -c execserver -n '__fish_seen_subcommand_from {with_path}' -a $boxes:
complete -c execserver -n '__fish_seen_subcommand_from help' -f -a '{verbs}'
complete -c execserver -n '__fish_seen_subcommand_from remove' -f -a $boxes
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
    second = "                2:{verb}:*) COMPREPLY=($(compgen -W '{words}' -- \"$cur\")) ;;"
    return _filled(_BASH, _bash_value, line, second)


def _bash_value(taken: str) -> str:
    words = f"COMPREPLY=($(compgen -W '{taken}' -- \"$cur\"))"
    return {_FILES: "_execserver_files", _BOXES: "_execserver_boxes"}.get(taken, words)


def _zsh() -> str:
    second = "                3:{verb}:*) compadd -- {words} ;;"
    return _filled(_ZSH, _zsh_value, "        {verb}:-*) compadd -- {options} ;;", second)


def _zsh_value(taken: str) -> str:
    return {_FILES: "_files", _BOXES: "_execserver_boxes"}.get(taken, f"compadd -- {taken}")


def _filled(script: str, value: Callable[[str], str], line: str, second: str) -> str:
    """Return the script of a shell: how it completes values, options and the words behind a verb."""
    options = [line.format(verb=verb, options=" ".join(names)) for verb, names in _options().items()]
    seconds = [second.format(verb=verb, words=words) for verb, words in _SECOND_WORDS.items()]
    return script.format(
        verbs=_verbs(),
        values=_values(value),
        cases="\n".join(options),
        seconds="\n".join(seconds),
        with_box=_patterns(_WITH_BOX),
        with_path=_patterns(_WITH_PATH),
    )


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


def _patterns(verbs: Iterable[str]) -> str:
    return "|".join(f"{verb}:*" for verb in verbs)


def _fish() -> str:
    lines = [
        f"complete -c execserver -n '__fish_seen_subcommand_from {verb}' {_fish_option(option)}"
        for verb, options in _options().items()
        for option in options.values()
    ]
    lines += [
        f"complete -c execserver -n '__fish_seen_subcommand_from {verb}; and "
        f"not __fish_seen_subcommand_from {words}' -f -a '{words}'"
        for verb, words in _SECOND_WORDS.items()
    ]
    head = _FISH_HEAD.format(verbs=_verbs(), with_box=" ".join(_WITH_BOX), with_path=" ".join(_WITH_PATH))
    return head + "\n".join([*lines, ""])


def _fish_option(option: Option) -> str:
    short = f"-s {option.short.removeprefix('-')} " if option.short else ""
    taken = _taken(option)
    acts = {_FILES: " -r -F", _BOXES: " -x -a $boxes", "": " -x"}
    value = acts.get(taken, f" -x -a '{taken}'") if option.value else ""
    return f"{short}-l {option.name.removeprefix('--')}{value}"
