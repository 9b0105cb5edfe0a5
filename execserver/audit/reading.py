"""Reading an audit log: whether its chain holds, and what it says."""

from __future__ import annotations

import os

from execserver.audit.chain import MAX_LINE_BYTES, Broken, Checker
from execserver.audit.segments import segment_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO


class NotIntact(Exception):
    """The log was changed, or is none; the text names file and line."""


class Verdict:
    """A chain that holds: the numbers of its first and last record, its head, and bytes of a torn line."""

    __slots__ = ("first", "head", "last", "torn")

    def __init__(self, first: int, last: int, head: str, torn: int) -> None:
        self.first = first
        self.last = last
        self.head = head
        self.torn = torn


def verify(folder: str, head: str | None = None) -> Verdict:
    """Follow the chain of a log to its end; `head` is a digest that must be in it.

    Raises NotIntact and OSError.
    """
    checker, torn = Checker(), 0
    was_there = head is None
    names = segment_names(folder)
    if not names:
        raise NotIntact(f"{folder}: there is no audit log")
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            for number, line in _lines(file, name):
                if not line.endswith(b"\n"):
                    if name != names[-1]:
                        raise NotIntact(f"{name}, line {number}: it is cut, and others follow")
                    torn = len(line)  # the server was killed at that moment, or writes just now
                    continue
                try:
                    checker.follow(line[:-1])
                except Broken as error:
                    raise NotIntact(f"{name}, line {number}: {error}") from None
                was_there = was_there or checker.head == head
    if not was_there:
        raise NotIntact(f"no record has the head {head}: the log was cut before it, or written anew")
    return Verdict(checker.first, checker.number, checker.head, torn)


def records(folder: str) -> Iterator[dict[str, object]]:
    """Yield what a log says, the oldest first.  Raises NotIntact and OSError."""
    for name in segment_names(folder):
        with open(os.path.join(folder, name), "rb") as file:
            checker = Checker()
            for number, line in _lines(file, name):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield checker.follow(line[:-1])
                except Broken as error:
                    raise NotIntact(f"{name}, line {number}: {error}") from None


def _lines(file: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise NotIntact(f"{name}, line {number}: it is longer than any record")
        yield number, line
