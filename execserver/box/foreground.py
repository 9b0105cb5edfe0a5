"""Lets a child that asks for a passphrase use the terminal while this program waits for it.

The child has a process group of its own, so that ^C for the command does not end it; but a group in the
background may not read the terminal.  So the group is lent the foreground until the connection stands.
"""

from __future__ import annotations

import os
import signal
from typing import Self


class Foreground:
    """Within `with` the terminal may be lent; at its end it is taken back.  Without a terminal: nothing."""

    def __init__(self) -> None:
        self._terminal: int | None = None

    def __enter__(self) -> Self:
        return self

    def lend(self, pid: int) -> None:
        """Make the group of a child the foreground group, if this program's is."""
        try:
            terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            return
        try:
            if os.tcgetpgrp(terminal) != os.getpgrp():
                os.close(terminal)
                return
            os.tcsetpgrp(terminal, pid)
            os.killpg(pid, signal.SIGCONT)  # it may have been stopped for reading too early
        except OSError:
            os.close(terminal)
            return
        self._terminal = terminal

    def __exit__(self, *exc_info: object) -> None:
        if self._terminal is None:
            return
        # A background group that sets the terminal is stopped, unless it ignores that.
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            os.tcsetpgrp(self._terminal, os.getpgrp())
        except OSError:
            pass  # the terminal is gone
        finally:
            signal.signal(signal.SIGTTOU, before)
            os.close(self._terminal)
            self._terminal = None
