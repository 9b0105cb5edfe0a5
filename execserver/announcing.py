"""What a server says once it can be reached: its URL, at a terminal how to try it, and then its log."""

from __future__ import annotations

import os

from execserver.leaving import write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_TRY_IT = """
Try it in another terminal:
  curl -i http://{address}/readyz
  CODEX_EXEC_SERVER_URL={url} codex
Ctrl-C stops the server and what runs in it.
"""


def how_to_try(url: str) -> str:
    """Return the text for a user at a terminal that follows the URL."""
    return _TRY_IT.format(url=url, address=url.removeprefix("ws://"))


def announcer(
    log_level: str | None, log_format: str, default_level: str = "warn"
) -> Callable[[str | None], None]:
    """Return the function that the app calls once it can be reached: with its URL, or None without one."""

    def announce(url: str | None) -> None:
        if url is not None:
            write(1, f"{url}\n")
            if os.isatty(2) and url.startswith("ws://"):
                write(2, how_to_try(url))
        # Logging is loaded after the URL is printed: a client may be waiting for that line.
        import logging

        from execserver import log

        log.configure(log_level or log.level_from_environment(os.environ, default_level), log_format)
        if url is not None:
            logging.getLogger("execserver").info("execserver listening on %s", url)

    return announce
