"""What a wrapper says, read strictly: a command can make it say anything."""

from __future__ import annotations

import os

from execserver.zygote.supervision.stand_in.signals import SIGKILL, SIGSTOP
from execserver.zygote.supervision.trap.callers import Execution

MAX_DESCRIPTOR = 1 << 16  # descriptors of a program outside have numbers below this
_UNCATCHABLE = (SIGKILL, SIGSTOP)
_LAST_SIGNAL = 64


class Refused(Exception):
    """A message that the contract does not have."""


def read_request(message: object) -> tuple[Execution, list[bytes]]:
    """Return what a request asks for and the program's environment; anything else raises Refused.

    An empty file name stays empty; any other is resolved against the request's folder, where the wrapper's
    own exec would look for it.
    """
    if not isinstance(message, dict):
        raise Refused("no object")
    file, workdir = _bytes(message.get("file")), _bytes(message.get("workdir"))
    argv, env = message.get("argv"), message.get("env")
    # A relative folder would be one below that of the supervisor.
    if not isinstance(argv, list) or not isinstance(env, dict) or not workdir.startswith(b"/"):
        raise Refused("not a request")
    entries = [_bytes(name) + b"=" + _bytes(value) for name, value in env.items()]
    words = [_bytes(word) for word in argv] or [b""]
    # The reference server resolved a relative file against its own folder, so `./x` could not run outside.
    return Execution(_absolute(workdir, file) if file else b"", words, workdir), entries


def read_numbers(message: object, count: int) -> list[int]:
    """Return the numbers that the `count` descriptors are to have; anything else raises Refused."""
    numbers = message.get("fds") if isinstance(message, dict) else None
    if not isinstance(numbers, list) or len(numbers) != count:
        raise Refused("mismatched number of fds")
    for number in numbers:
        # Not isinstance: true and false are ints to Python.
        if type(number) is not int or not 0 <= number < MAX_DESCRIPTOR:
            raise Refused("no number of a descriptor")
    if len(set(numbers)) != count:
        raise Refused("overlapping fds")
    return numbers


def read_signal(message: object) -> int:
    """Return the number of a signal that can be caught; anything else raises Refused."""
    signum = message.get("signal") if isinstance(message, dict) else None
    if type(signum) is not int or not 0 < signum <= _LAST_SIGNAL or signum in _UNCATCHABLE:
        raise Refused("no signal")
    return signum


def _bytes(text: object) -> bytes:
    if not isinstance(text, str) or "\0" in text:
        raise Refused("not a text that a program can be given")
    # Single surrogates become the bytes that they stand for.
    return os.fsencode(text)


def _absolute(workdir: bytes, file: bytes) -> bytes:
    """Return the path of a program without `.` and `..`; symlinks are followed before a `..` only."""
    path = file if file.startswith(b"/") else workdir + b"/" + file
    if b"/." not in path and b"//" not in path:
        return path
    parts = path.split(b"/")
    if b".." in parts:
        folder, _, name = path.rpartition(b"/")
        return os.path.join(os.path.realpath(folder), name)
    return b"/" + b"/".join(part for part in parts if part not in (b"", b"."))
