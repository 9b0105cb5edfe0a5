"""What both directions of a sync have in common: who hears of it, batches, and when to give up."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, Protocol, TypeVar

from execserver.box.shown import shown
from execserver.box.transfer.comparing import Plan
from execserver.box.trees.here import Changed
from execserver.box.trees.nodes import Node, Tree
from execserver.box.trees.there import BATCH_BYTES, BATCH_NAMES
from execserver.client.errors import ExecServerError

T = TypeVar("T")
R = TypeVar("R")

LARGE: Final = 512 * 1024  # a file of more goes by itself, in pieces, and can be resumed
AT_ONCE: Final = 3  # requests on their way
WRITABLE: Final = 0o700
# What fails once for these reasons fails for every file.
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_HOPELESS: Final = (*_FULL, errno.EROFS)


class Hopeless(Exception):
    """The target takes nothing more: its disk is full (`is_full`), or may not be written to."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.is_full = number in _FULL


class Listener(Protocol):
    """Who hears how a sync goes on."""

    def copied(self, name: bytes, size: int) -> None:
        """Note that a file is there."""

    def passed(self, size: int) -> None:
        """Note that so many bytes more are through; fewer, if negative: something begins anew."""

    def removed(self, name: bytes) -> None:
        """Note that a name is gone."""

    def gone(self, name: bytes) -> None:
        """Note that something was in the source and is not any more."""

    def failed(self, name: bytes, text: str) -> None:
        """Note that something could not be done."""

    def say(self, text: str) -> None:
        """Tell a person something that is no failure."""


class Through:
    """Tells how far one file is, also when it falls back: no byte counts twice."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._told = 0

    def to(self, end: int) -> None:
        """Tell that everything before `end` is through, and nothing behind."""
        if end != self._told:
            self._listener.passed(end - self._told)
            self._told = end


def anew(name: bytes) -> str:
    """Return what to say when a part of a file is of no use."""
    return f"{shown(name, 300) or 'the file'}: what is there is of another file; it is copied anew"


def check_hope(error: OSError | str) -> None:
    """Raise Hopeless if all that follows would fail, too."""
    if isinstance(error, OSError):
        if error.errno in _HOPELESS:
            raise Hopeless(os.strerror(error.errno), error.errno)
        return
    for number in _HOPELESS:
        if error.endswith(f"(os error {number})"):
            raise Hopeless(error, number)


def batches(names: Sequence[bytes], tree: Tree) -> Iterator[list[bytes]]:
    """Yield names in groups whose files fit into one request."""
    batch: list[bytes] = []
    size = 0
    for name in names:
        if batch and (len(batch) == BATCH_NAMES or size + tree[name].size > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += tree[name].size
    if batch:
        yield batch


def folders_to_open(plan: Plan, target: Tree) -> list[bytes]:
    """Return the folders that are made, or must be writable while others change in them; parents first."""
    new = set(plan.folders)
    return [
        name
        for name in reversed(plan.settled)
        if name in new or (name in target and target[name].mode & WRITABLE != WRITABLE)
    ]


def side_by_side(work: Callable[[T], R], items: Iterable[T], most: int) -> Iterator[R]:
    """Yield the results of work on items, in their order, with so many at a time.  Raises the first error."""

    rest = iter(items)
    first = list(islice(rest, 2))
    if len(first) < 2:
        yield from map(work, first)
        return
    from gevent.pool import Pool  # late: one small file needs none

    def safely(item: T) -> tuple[list[R], Exception | None]:
        try:
            return [work(item)], None
        except (ExecServerError, OSError, Changed, Hopeless) as error:
            return [], error  # an exception that leaves a greenlet is printed

    pool = Pool(most)
    try:
        for results, error in pool.imap(safely, chain(first, rest), maxsize=most):
            if error is not None:
                raise error
            yield from results
    finally:
        pool.kill()


def is_large(node: Node) -> bool:
    """Return whether a file goes by itself."""
    return node.size > LARGE
