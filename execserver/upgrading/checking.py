"""Asks a program whether it can take over: it is run once, with the version of the state and our arguments.

It answers with one line.  Beforehand a file that unpacks itself has done so by then, and what it cannot read
of what our arguments name it says now, while this server still serves.
"""

from __future__ import annotations

import os
import signal
from typing import Final

from gevent.os import nb_read

from execserver.core.env_policy import SERVER_CREDENTIALS
from execserver.eventloop.deadline import at_most
from execserver.handover.program import ANSWER, BadProgram, Program
from execserver.services.launch.orphans import wait_for_end

_WAIT_S: Final = 60.0  # the first start of a file unpacks it
_MOST_BYTES: Final = 16 * 1024
_MOST_SHOWN: Final = 300
_EVERY_SIGNAL = tuple(number for number in range(1, 65) if number not in (32, 33))


def check(program: Program, version: int) -> None:
    """Wait until the program has said that it can take over.  Raises BadProgram with what it says instead."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        os.set_blocking(reader, False)
        pid = _started(program, version, writer)
        os.close(writer)
        writer = -1
        said, in_time = _said(reader, pid)
    except OSError as error:
        raise BadProgram(f"{program.shown} cannot be started: {error.strerror}") from None
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    if not in_time:
        raise BadProgram(f"{program.shown} has not said within {_WAIT_S:.0f} s whether it can take over")
    if said.splitlines()[-1:] != [f"{ANSWER} {version}"]:
        raise BadProgram(_refusal(program.shown, said))


def without_credentials() -> dict[str, str]:
    """Return this process's variables but those that sign in: they go along in the state, if at all.

    The environment of a process that has just begun can be read by others of its user.
    """
    secret = {name.decode() for name in SERVER_CREDENTIALS}
    return {name: value for name, value in os.environ.items() if name not in secret}


def _started(program: Program, version: int, writer: int) -> int:
    return os.posix_spawn(
        program.path,
        program.asking(version),
        without_credentials(),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, writer, 1),
            (os.POSIX_SPAWN_DUP2, writer, 2),
            (os.POSIX_SPAWN_DUP2, program.fd, program.fd),  # a script is read by this number
        ],
        setsid=True,  # ^C at the server's terminal is the server's, and no answer of this program
        setsigmask=(),
        setsigdef=_EVERY_SIGNAL,
    )


def _said(reader: int, pid: int) -> tuple[str, bool]:
    """Return what a process prints, and whether it ended in time; it is over then."""
    data = b""
    in_time = False
    try:
        with at_most(_WAIT_S):
            while len(data) < _MOST_BYTES and (piece := nb_read(reader, _MOST_BYTES)):
                data += piece
            in_time = True
    finally:
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is its own
        wait_for_end(pid)
    return data.decode(errors="backslashreplace").strip(), in_time


def _refusal(shown: str, said: str) -> str:
    first = next((line for line in said.splitlines() if line.strip()), "")
    quoted = "".join(char if char.isprintable() else "?" for char in first)[:_MOST_SHOWN]
    return f"{shown} cannot take over: {quoted or 'it said nothing'}"
