"""Reading the file of `--network-rules`, once and at the start; nothing else of this package does I/O."""

from __future__ import annotations

import os
import stat

from execserver.egress.rules_file import NetworkRules, RulesFileError, parse_rules
from execserver.leaving import failure

MAX_BYTES = 1024 * 1024


def rules_of_file(path: str) -> NetworkRules:
    """Return the rules of a file.  Raises Leave, with the line and the remedy, for one that cannot serve."""
    return _read(path)[1]


def checked_text(path: str) -> str:
    """Return the text of a file whose rules can serve.  Raises Leave."""
    return _read(path)[0]


def _read(path: str) -> tuple[str, NetworkRules]:
    try:
        text = _text_of(path)
        return text, parse_rules(text)
    except RulesFileError as error:
        place = f"{path}:{error.line}" if error.line else path
        raise failure(f"{place}: {error}", error.cure) from None
    except OSError as error:
        raise failure(f"{path}: {error.strerror}", "name a file of rules that can be read") from None


def _text_of(path: str) -> str:
    # Non-blocking: a FIFO would hold up the start until somebody opens its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise RulesFileError("it is no regular file", "name a file of rules")
        # Whoever can write there decides what commands reach.
        if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            cure = f"make it yours alone to write: chmod go-w {path}"
            raise RulesFileError("others can write to it, or own it", cure)
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise RulesFileError(f"it has more than {MAX_BYTES} bytes", "use patterns, such as *.example.com")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise RulesFileError("it is no UTF-8", "write it as UTF-8", line) from None
