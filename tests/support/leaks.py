"""What a test leaves behind in this process: open descriptors and children."""

from __future__ import annotations

import os
from typing import NamedTuple

# A gevent hub owns one of each for as long as its thread lives; it is made when first used.
_HUB_DESCRIPTORS = ("anon_inode:[eventpoll]", "anon_inode:[eventfd]")


class Resources(NamedTuple):
    """Descriptors as number -> what they are open on, and the ids of child processes."""

    descriptors: dict[int, str]
    children: frozenset[int]

    def leaked_since(self, before: Resources) -> list[str]:
        """Return one line per descriptor or child that was not there before."""
        lines = [
            f"descriptor {number} -> {target}"
            for number, target in self.descriptors.items()
            if before.descriptors.get(number) != target
        ]
        return lines + [f"child process {pid}" for pid in sorted(self.children - before.children)]


def snapshot() -> Resources:
    """Return what this process holds now; a zombie counts as a child."""
    return Resources(_descriptors(), _children())


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the listing's own descriptor
        if target not in _HUB_DESCRIPTORS:
            found[int(name)] = target
    return found


def _children() -> frozenset[int]:
    pids: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as file:
                pids.update(int(pid) for pid in file.read().split())
        except FileNotFoundError:
            continue  # the thread has just ended, or the kernel does not list children
    return frozenset(pids)
