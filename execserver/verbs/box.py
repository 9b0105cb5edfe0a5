"""`execserver box`: names for boxes, and which of them answer."""

from __future__ import annotations

import os
import sys

from execserver.arguments import Mistake, Program, read_table
from execserver.leaving import failure, put, until_left
from execserver.verbs.usage import carry_out

HELP = """\
Give boxes names, and see which of them answer. A box is a machine on which `execserver run` and `shell` work.

Usage: execserver box add <NAME> <URL> [OPTIONS]
       execserver box list [--json]
       execserver box remove <NAME>

URL is one of:
  ws://HOST:PORT, wss://HOST[:PORT]       a server that listens: `execserver --listen URL` there
  unix:/PATH                              a server of this machine
  ssh:[USER@]HOST[:PORT][/PROGRAM]        started there over the system's ssh; PROGRAM if `execserver` is not
                                          in the PATH there
  relay:https://RELAY/ENVIRONMENT         a machine behind a relay; see `execserver relay --help`

Options of `add`:
  --token-file <FILE>       The token is in this file, on one line; it is read for each connection.
  --token-stdin             Read the token from stdin and keep it in the boxes file.
  --ca-file <FILE>          Trust the certificates in this file, PEM, for wss:// in place of the system's.

Options:
  --json                    `list` prints one JSON array, for programs.
  -h, --help                Print this text and exit.

`list` asks all boxes at once, at most 10 s, and shows how long the answer took and the sandbox there. An ssh
box that needs a password counts as one that does not answer.

The boxes file is ~/.config/execserver/boxes.toml, or what EXECSERVER_BOXES names. It is refused when others
could have changed it, or could read a token in it. EXECSERVER_BOX names the box of verbs that are given none.

Exit status: 0; 1 it cannot be done, `list`: some box does not answer; 2 wrong usage.
"""

_PROGRAM = "execserver box"
_USAGES = {"add": "add <NAME> <URL> [OPTIONS]", "list": "list [--json]", "remove": "remove <NAME>"}
_ADDING = ("--token-file", "--token-stdin", "--ca-file")
_MAX_TOKEN = 16 * 1024


def main() -> int:
    """Do what the arguments say; return 0, 1 if that cannot be done, 2 for wrong usage."""
    return until_left(_main)


def _main() -> int:
    from execserver.box.address import BadBox
    from execserver.box.book import BookError

    actions = {"add": _add, "list": _list, "remove": _remove}
    try:
        return carry_out(_PROGRAM, sys.argv[1:], actions, HELP)
    except (BookError, BadBox) as error:
        raise failure(str(error), error.cure) from None


def _program(action: str, *options: str, operands: tuple[str, ...] = ()) -> Program:
    known = {name: option for name, option in read_table(HELP).items() if name in (*options, "--help")}
    return Program(_PROGRAM, known, lambda: HELP, "", operands, usage=_USAGES[action])


def _add(given: list[str]) -> int:
    from execserver.box import book

    program = _program("add", *_ADDING, operands=("<NAME>", "<URL>"))
    parsed = program.parse(given)
    options = parsed.options
    if "--token-file" in options and "--token-stdin" in options:
        raise program.mistaken(
            Mistake("the argument '--token-file <FILE>' cannot be used with '--token-stdin'")
        )
    token = _token() if "--token-stdin" in options else None
    files = [
        os.path.abspath(options[name]) if name in options else None for name in ("--token-file", "--ca-file")
    ]
    name, url = parsed.operands
    book.add(book.default_path(os.environ), book.Entry(name, url, token, *files))
    return 0


def _token() -> str:
    token = sys.stdin.buffer.readline(_MAX_TOKEN + 2).decode("ascii", "replace").strip()
    if not token or len(token) > _MAX_TOKEN or not token.isascii() or not token.isprintable():
        raise failure(
            "stdin holds no token", "give it on one line: execserver box add NAME URL --token-stdin < FILE"
        )
    return token


def _remove(given: list[str]) -> int:
    from execserver.box import book

    (name,) = _program("remove", operands=("<NAME>",)).parse(given).operands
    book.remove(book.default_path(os.environ), name)
    return 0


def _list(given: list[str]) -> int:
    from execserver.box import book

    options = _program("list", "--json").parse(given).options
    found = book.entries(book.default_path(os.environ))
    from execserver.box import survey

    states = survey.ask([*found.values()])
    put(survey.as_json(states) if "--json" in options else survey.as_table(states))
    return 0 if all(state.error is None for state in states) else 1
