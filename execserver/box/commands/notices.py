"""What the client itself tells a person while a command runs: few lines, on standard error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import gevent

from execserver.box.shown import shown
from execserver.leaving import write
from execserver.protocol.resource_limits import EndCause

if TYPE_CHECKING:
    from execserver.box.keys.local_echo import LocalEcho
    from execserver.box.terminal import Terminal
    from execserver.client.client import ExecServerClient
    from execserver.protocol.resource_limits import ProcessEnd

_SILENCE_S: Final = 2.0


@contextmanager
def telling(client: ExecServerClient, name: str) -> Iterator[None]:
    """Tell a person of lost connections meanwhile who has no terminal there: ^C ends the waiting."""
    notices = Notices(name, None, has_escapes=False)
    client.watch_connection(notices.changed)
    try:
        yield
    finally:
        client.watch_connection(_ignore)
        notices.close()


def _ignore(is_back: bool) -> None:
    pass


def tell_end(ended: ProcessEnd | None) -> None:
    """Say why the box ended a command, or its machine did; a signal shows in the exit status."""
    if ended is not None and ended.cause is not EndCause.SIGNAL:
        write(2, f"execserver: the command {shown(ended.text, 1000)}\n")


class Notices:
    """Says that the connection is lost, once it has been for a while, and that it is back."""

    def __init__(
        self, name: str, terminal: Terminal | None, has_escapes: bool, echo: LocalEcho | None = None
    ) -> None:
        self._name = shown(name, 100)
        self._terminal = terminal
        self._echo = echo
        self._way_out = "~. ends" if has_escapes else "^C ends"
        self._waiting: gevent.Greenlet[[], None] | None = None
        self._said = False

    def changed(self, is_back: bool) -> None:
        """Note that the connection was lost, or resumed."""
        self.close()
        if not is_back:
            self._waiting = gevent.spawn_later(_SILENCE_S, self._say_lost)
        elif self._said:
            self._said = False
            self.say(f"connected to {self._name} again")

    def say(self, text: str) -> None:
        """Write a line; a standard error that is gone is nobody's loss."""
        # In raw mode the cursor is anywhere, and a line end does not return to the first column.
        raw = self._terminal is not None and self._terminal.is_raw
        line = f"\r\nexecserver: {text}\r\n" if raw else f"execserver: {text}\n"
        data = line.encode("utf-8", "backslashreplace")
        if self._echo is not None:
            self._echo.withdraw()
        try:
            os.write(2, data)
            if self._echo is not None and os.fstat(1).st_rdev == os.fstat(2).st_rdev:
                self._echo.note(data)
        except OSError:
            pass

    def close(self) -> None:
        """Say nothing of what was to be said later."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting is not gevent.getcurrent():
            waiting.kill(block=False)

    def _say_lost(self) -> None:
        self._waiting = None
        self._said = True
        self.say(f"the connection to {self._name} is lost; trying to resume ({self._way_out})")
