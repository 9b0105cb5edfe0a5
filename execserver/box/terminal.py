"""The person's terminal: its size, raw while a remote one is shown in it, and as it was afterwards.

`restore` is called at every end that a program can notice, signals among them.  After SIGKILL of this program
the terminal stays raw; `stty sane` (or `reset`) brings it back.
"""

from __future__ import annotations

import os
import termios
import tty
from typing import Any, Final, NamedTuple

# A full-screen program may have left on: rows that scroll alone, its own screen, its meaning of arrow keys,
# reports of mouse and focus, bracketed paste, line drawing, colours; and hidden the cursor.  The first two
# move the cursor, so it is saved before; each of the two screens has a place for that.
_LEFT_ON: Final = (
    b"\x1b7\x1b[r\x1b8\x1b7\x1b[?1049l\x1b[?1;1000;1002;1003;1004;1006;2004l\x1b>\x1b(B\x1b[?25h\x1b[0m"
)


class Size(NamedTuple):
    """The size of a terminal in character cells."""

    rows: int
    cols: int


class Terminal:
    """One terminal by its descriptor, which stays the caller's."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before: list[Any] | None = None

    @property
    def is_raw(self) -> bool:
        """True between `make_raw` and `restore`."""
        return self._before is not None

    def size(self) -> Size | None:
        """Return the size, None if the terminal does not know it."""
        try:
            found = os.get_terminal_size(self._fd)
        except OSError:
            return None
        return Size(found.lines, found.columns) if found.lines and found.columns else None

    def make_raw(self) -> None:
        """Let every key through as it is.  Raises termios.error."""
        before = termios.tcgetattr(self._fd)
        tty.setraw(self._fd, termios.TCSADRAIN)
        self._before = before

    def suspend(self) -> None:
        """Make it as it was while this program is stopped; `resume` ends that."""
        before = self._before
        self.restore(after_loss=True)
        self._before = before

    def resume(self) -> None:
        """Let every key through again after this program was stopped: a shell has changed the terminal."""
        if self._before is None:
            return
        try:
            tty.setraw(self._fd, termios.TCSADRAIN)
        except (OSError, termios.error):
            pass  # it is gone, or this program is in the background: then it is continued once more

    def restore(self, *, after_loss: bool = False) -> None:
        """Make it as it was; `after_loss` also switches off what the remote program did not any more."""
        before, self._before = self._before, None
        if before is None:
            return
        try:
            if after_loss:
                os.write(self._fd, _LEFT_ON)
            termios.tcsetattr(self._fd, termios.TCSADRAIN, before)
        except (OSError, termios.error):
            pass  # the terminal is gone
