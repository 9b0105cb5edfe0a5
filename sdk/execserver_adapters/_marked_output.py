"""A shell that is fed commands, and where the output of each one ends: at a mark that nobody can guess."""

from __future__ import annotations

import os
import re
import shlex
from typing import Final, NamedTuple

from execserver_adapters._kept import Kept

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_STATUS: Final = re.compile(rb"(\d{1,3})\n")
_LONGEST_STATUS: Final = 4


class Said(NamedTuple):
    """What a command printed, without the colours of terminals, and its status."""

    text: str
    status: int


class Marked:
    """The output of one command, both streams in one."""

    def __init__(self, limit: int) -> None:
        """At most about `limit` bytes are kept, the beginning and the end."""
        self._mark = b"\n--execserver-" + os.urandom(16).hex().encode() + b"-"
        self._kept = Kept(limit // 2, max(limit // 2, 2 * len(self._mark)))
        self._newest = b""
        self._status: int | None = None

    def line(self, command: str) -> bytes:
        """Return what the shell is to read: the command, then the mark.

        The command is one word for `eval`, so that an open quote or bracket in it ends with it; it reads no
        input, or it would eat what the shell is told next.
        """
        told = (
            f"eval {shlex.quote(command)} </dev/null 2>&1; printf '\\n%s%d\\n' {self._mark[1:].decode()} $?\n"
        )
        return told.encode("utf-8", "surrogateescape")

    def add(self, data: bytes) -> bool:
        """Take output; return True once the mark has come."""
        self._kept.add(data)
        self._newest = (self._newest + data)[-(len(self._mark) + len(data) + _LONGEST_STATUS) :]
        at = self._newest.rfind(self._mark)
        found = _STATUS.match(self._newest, at + len(self._mark)) if at >= 0 else None
        if found is None:
            self._newest = self._newest[-(len(self._mark) + _LONGEST_STATUS) :]
            return False
        self._status = int(found[1])
        return True

    def said(self, status: int | None = None) -> Said:
        """Return what the command printed; `status` is that of a shell which ended before the mark."""
        text = self._kept.text().rpartition(self._mark.decode())
        shown = text[0] if text[1] else text[2]
        own = self._status if self._status is not None else status
        return Said(_ESCAPES.sub("", shown).strip("\n"), -1 if own is None else own)
