"""`execserver help [VERB]`: the text about a verb, as its `--help` prints it."""

from __future__ import annotations

import sys

from execserver.leaving import failure, until_left, write

# Verb -> module and name of its text; the program's own text describes the others.
TEXTS = {
    "box": "execserver.verbs.box:HELP",
    "completion": "execserver.verbs.completion:HELP",
    "attach": "execserver.verbs.kept:ATTACH_HELP",
    "cp": "execserver.verbs.cp:HELP",
    "edit": "execserver.verbs.edit:HELP",
    "forward": "execserver.verbs.forward_ports:HELP",
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
    "rules": "execserver.verbs.rules:HELP",
}
GENERAL = "execserver.cli_help:HELP"


def main() -> int:
    """Print a text; return 0, or 1 for a verb that there is not."""
    return until_left(_main)


def _main() -> int:
    asked = [word for word in sys.argv[1:2] if not word.startswith("-")]
    write(1, text_about(asked[0]) if asked else text(GENERAL))
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
