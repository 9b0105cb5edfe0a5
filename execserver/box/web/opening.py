"""Starts the person's browser with the console's URL.

The URL is a secret, and the arguments of a program are not: the browser gets a file of this user that leads
to the console.  The browser is not ours, so it goes on when the console ends.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import tempfile
from typing import TYPE_CHECKING, Final

import gevent

if TYPE_CHECKING:
    from collections.abc import Mapping

_POLL_S: Final = 0.2
_TRIED_S: Final = 10.0
_NOT_IGNORED: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE)


def command_for(environ: Mapping[str, str]) -> list[str] | None:
    """Return the words that start a browser, `%s` for the address; None where there is none."""
    for text in environ.get("BROWSER", "").split(":"):
        try:
            words = shlex.split(text)
        except ValueError:
            continue
        if words and shutil.which(words[0], path=environ.get("PATH")):
            return words if any("%s" in word for word in words) else [*words, "%s"]
    has_screen = environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")
    if has_screen and shutil.which("xdg-open", path=environ.get("PATH")):
        return ["xdg-open", "%s"]
    return None


class Opened:
    """Owns the file that leads the browser to the console; `close` removes it."""

    def __init__(self, url: str) -> None:
        """Write the file.  Raises OSError."""
        self._folder = tempfile.mkdtemp(prefix="execserver-")  # for this user alone
        self.path = os.path.join(self._folder, "console.html")
        refresh = f'<meta http-equiv="refresh" content="0;url={url}">'
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(f"<!doctype html>{refresh}<title>execserver</title>\n")

    def start(self, command: list[str]) -> bool:
        """Start the browser; return False if it cannot be started or says within 10 s that it has failed."""
        words = [word.replace("%s", f"file://{self.path}") for word in command]
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            pid = os.posix_spawnp(
                words[0],
                words,
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)],
                setsid=True,
                setsigdef=_NOT_IGNORED,
            )
        except OSError:
            return False
        finally:
            os.close(null)
        return _has_begun(pid)

    def close(self) -> None:
        """Remove the file."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _has_begun(pid: int) -> bool:
    """Wait a moment for the end of a starter, such as xdg-open; a browser goes on."""
    for _ in range(int(_TRIED_S / _POLL_S)):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status == 0
        gevent.sleep(_POLL_S)
    return True
