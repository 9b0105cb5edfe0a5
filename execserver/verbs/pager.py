"""Shows a manual page to a person: by `man` where stdout is a terminal, else it goes out as it is."""

from __future__ import annotations

import os
import shutil

from execserver.leaving import put


def show(page: str, text: str) -> None:
    """Show a page in roff, or the text that it was made of where no program can format it."""
    if not os.isatty(1):
        put(page)
    elif not _formatted(page):
        put(text)


def _formatted(page: str) -> bool:
    if shutil.which("man") is None:
        return False
    import subprocess  # late: only a person at a terminal needs it

    try:
        shown = subprocess.run(["man", "-l", "-"], input=page.encode(), check=False)
    except (OSError, KeyboardInterrupt):
        return False
    return shown.returncode == 0
