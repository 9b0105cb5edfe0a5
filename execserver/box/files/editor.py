"""The editor of a person: which one it is, and the terminal and the signals while it runs.

It has the terminal and the process group of this program, so ^Z and ^C reach it as they would without us; ^C
is the editor's alone.  SIGTERM and SIGHUP for this program go to the editor, too.  The terminal is afterwards
as it was before, also when the editor is killed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import termios
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import gevent
from gevent.hub import get_hub

from execserver.leaving import failure

_VARIABLES: Final = ("VISUAL", "EDITOR")
_USUAL: Final = ("sensible-editor", "editor", "vi", "nano")
_IGNORED: Final = (signal.SIGINT, signal.SIGQUIT)
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGHUP)
_HANDLED: Final = (*_IGNORED, *_PASSED_ON)
_DEFAULT: Final = (*_HANDLED, signal.SIGPIPE, signal.SIGXFSZ)
_PATIENCE_S: Final = 5.0  # between the signal that this program got and SIGKILL
_READABLE: Final = 1


class EditorEnd(NamedTuple):
    """How the editor ended: its status as a shell has it, and the signal that this program got meanwhile."""

    status: int
    asked_by: int | None


def chosen() -> list[str]:
    """Return the words that start the editor.  Raises Leave without one."""
    for name in _VARIABLES:
        if text := os.environ.get(name, "").strip():
            try:
                return shlex.split(text)
            except ValueError as error:
                raise failure(f"{name} cannot be read: {error}", "set it as for a shell") from None
    for name in _USUAL:
        if shutil.which(name) is not None:
            return [name]
    raise failure("there is no editor", "name one: EDITOR=... execserver edit ...")


def run(words: Sequence[str], paths: Sequence[str]) -> EditorEnd:
    """Run the editor on files to its end.  Raises OSError if it cannot be started.

    One that still runs 5 s after this program was told to end is killed.
    """
    terminal = _settings()
    handlers = {number: signal.getsignal(number) for number in _HANDLED}
    asked: list[int] = []

    def pass_on(number: int) -> None:
        asked.append(number)
        os.kill(pid, number)  # it is reaped below, without the event loop in between
        late.start_later(_PATIENCE_S)

    watchers = [_watched(number, pass_on if number in _PASSED_ON else _ignore) for number in _HANDLED]
    try:
        # What is caught here is a child's default; no watcher acts before the event loop runs.
        pid = os.posix_spawnp(words[0], [*words, *paths], dict(os.environ), setsigdef=_DEFAULT)
        late = gevent.Greenlet(os.kill, pid, signal.SIGKILL)
        try:
            _await_end(pid)
        finally:
            late.kill()
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            _restore(terminal)
    finally:
        for watcher in watchers:
            watcher.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)  # the event loop leaves the system's default behind
    return EditorEnd(code if code >= 0 else 128 - code, asked[0] if asked else None)


def _watched(number: int, act: Callable[[int], None]) -> Any:
    watcher = get_hub().loop.signal(number)
    watcher.start(act, number)
    return watcher


def _await_end(pid: int) -> None:
    """Wait for the end of the editor, which is killed if this is interrupted."""
    try:
        pidfd = os.pidfd_open(pid)
        try:
            watcher = get_hub().loop.io(pidfd, _READABLE)
            try:
                get_hub().wait(watcher)
            finally:
                watcher.close()
        finally:
            os.close(pidfd)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise


def _settings() -> list[Any] | None:
    try:
        return termios.tcgetattr(0)
    except termios.error:
        return None  # not a terminal


def _restore(before: list[Any] | None) -> None:
    if before is None:
        return
    try:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
    except termios.error:
        pass  # the terminal is gone


def _ignore(number: int) -> None:
    pass
