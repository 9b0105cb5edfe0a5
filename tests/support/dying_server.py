"""A server that kills itself right before or behind one of the steps in which it writes something down.

Started in the place of the program.  Each server draws the step at which it dies, the first one among those
behind its start; where it was is noted in a file, a line for each death.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from execserver.dispatch import main
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.survival import keeping, messages
from execserver.zygote import channel

DEATHS_VARIABLE = "TEST_DEATHS"  # names the file
_SYSTEM_CALLS = ("write", "pwrite", "splice", "sendfile", "ftruncate", "writev", "close")
_FRAMES = 14  # told of a death
_OF_CHANNEL = ("_send", "receive_bounded")
_STEPS = (*_SYSTEM_CALLS, *_OF_CHANNEL, "messages.send")
_MOST_TIMES = (2, 10, 100)


class _Death:
    """Counts steps down to the one at which this process dies."""

    def __init__(self, deaths: str) -> None:
        self._deaths = deaths
        self._fatal = f"{random.choice(('before', 'behind'))} {random.choice(_STEPS)}"
        self._left = random.randrange(1, random.choice(_MOST_TIMES))
        self.is_armed = False

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function as this one, with a step before and one behind it."""

        def with_steps(*words: Any, **more: Any) -> Any:
            self._step(f"before {name}")
            done = call(*words, **more)
            self._step(f"behind {name}")
            return done

        return with_steps

    def _step(self, name: str) -> None:
        if not self.is_armed or name != self._fatal:
            return
        self._left -= 1
        if not self._left:
            fd = os.open(self._deaths, os.O_WRONLY | os.O_APPEND)
            _write(fd, f"{name}: {_stack()}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)


_write = os.write


def _stack() -> str:
    """Return who has called whom, the last one first."""
    frames = traceback.extract_stack(limit=_FRAMES)[:-3]
    return " < ".join(f"{Path(each.filename).stem}.{each.name}:{each.lineno}" for each in reversed(frames))


def _be_mortal(deaths: str) -> None:
    death = _Death(deaths)
    send = messages.send

    def armed_send(sock: Any, kind: int, *more: Any) -> None:
        send(sock, kind, *more)
        if kind == messages.READY:
            death.is_armed = True

    take_over = keeping.Keeping._take_over

    def armed_take_over(self: keeping.Keeping) -> str:
        cause = take_over(self)
        death.is_armed = bool(cause)  # the first server must serve before it may die
        return cause

    keeping.Keeping._take_over = armed_take_over  # type: ignore[method-assign]
    messages.send = death.around("messages.send", armed_send)
    for module, name in [
        *[(os, each) for each in _SYSTEM_CALLS],
        (channel, "_send"),
        (channel, "receive_bounded"),
    ]:
        setattr(module, name, death.around(name, getattr(module, name)))


def _server_command(self: ExecServerRuntimePaths, arguments: list[str]) -> list[str]:
    return [sys.executable, "-I", str(Path(__file__).resolve()), *arguments]


ExecServerRuntimePaths.server_command = _server_command  # type: ignore[assignment,method-assign]
if keeping.KEEPER_VARIABLE in os.environ:
    _be_mortal(os.environ[DEATHS_VARIABLE])
sys.exit(main())
