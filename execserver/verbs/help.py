"""`execserver help [VERB]`: the text about a verb, as its `--help` prints it, or as a manual page."""

from __future__ import annotations

import sys

from execserver.arguments import Mistake, Program, read_table
from execserver.leaving import failure, put, until_left
from execserver.version import __version__

HELP = """\
Print the text about a verb, or about the program.

Usage: execserver help [--man] [VERB]

Options:
  --man                     Show it as a manual page; in roff where stdout is no terminal, so that it can be
                            kept: execserver help --man run > execserver-run.1
  -h, --help                Print this text and exit.

Exit status: 0; 1 there is no such verb; 2 wrong usage.
"""

# Verb -> module and name of its text; the program's own text describes the others.
TEXTS = {
    "box": "execserver.verbs.box:HELP",
    "completion": "execserver.verbs.completion:HELP",
    "attach": "execserver.verbs.kept:ATTACH_HELP",
    "cp": "execserver.verbs.cp:HELP",
    "edit": "execserver.verbs.edit:HELP",
    "find": "execserver.verbs.find:HELP",
    "grep": "execserver.verbs.find:GREP_HELP",
    "forward": "execserver.verbs.forward_ports:HELP",
    "help": "execserver.verbs.help:HELP",
    "kill": "execserver.verbs.kept:KILL_HELP",
    "logs": "execserver.verbs.kept:LOGS_HELP",
    "ps": "execserver.verbs.kept:PS_HELP",
    "wait": "execserver.verbs.kept:WAIT_HELP",
    "relay": "execserver.verbs.relay:HELP",
    "run": "execserver.verbs.run:HELP",
    "sync": "execserver.verbs.sync:HELP",
    "shell": "execserver.verbs.run:SHELL_HELP",
    "web": "execserver.verbs.web:HELP",
    "token": "execserver.verbs.token:HELP",
    "audit": "execserver.verbs.audit:HELP",
    "network": "execserver.verbs.network:HELP",
    "rules": "execserver.verbs.rules:HELP",
    "upgrade": "execserver.verbs.upgrade:HELP",
}
GENERAL = "execserver.cli_help:HELP"


def main() -> int:
    """Print a text; return 0, 1 for a verb that there is not, 2 for wrong usage."""
    return until_left(_main)


def _main() -> int:
    program = Program(
        "execserver help", read_table(HELP), lambda: HELP, takes_more=True, usage="[--man] [VERB]"
    )
    parsed = program.parse(sys.argv[1:])
    if len(parsed.operands) > 1:
        raise program.mistaken(Mistake(f"unexpected argument '{parsed.operands[1]}' found"))
    verb = parsed.operands[0] if parsed.operands else None
    found = text(GENERAL) if verb is None else text_about(verb)
    if "--man" not in parsed.options:
        put(found)
        return 0
    from execserver.verbs.man_page import manual_page
    from execserver.verbs.pager import show

    show(manual_page(verb if verb in TEXTS else None, found, __version__), found)
    return 0


def text_about(verb: str) -> str:
    """Return the text about a verb.  Raises Leave if there is no such verb."""
    from execserver.dispatch import VERBS

    if verb not in VERBS:
        raise failure(f"there is no verb '{verb}'", f"the verbs are {', '.join(sorted(VERBS))}")
    return text(TEXTS.get(verb, GENERAL))


def text(place: str) -> str:
    """Return a help text by its module and name."""
    module, _, name = place.partition(":")
    __import__(module)
    found: str = getattr(sys.modules[module], name)
    return found
