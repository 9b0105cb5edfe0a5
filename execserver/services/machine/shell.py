"""Which shell the server's user works with (wire contract, section 10).

The passwd entry decides, never `$SHELL`.  If its shell is of an unknown kind or cannot be found, the answer
is bash, else zsh, else `/bin/sh`, whether that exists or not.
"""

from __future__ import annotations

import os

from execserver.protocol.environment import ShellInfo

# Name on the wire -> names of the program, in the order they are looked for.
_PROGRAMS = {
    "zsh": ("zsh",),
    "bash": ("bash",),
    "sh": ("sh",),
    "powershell": ("pwsh", "powershell"),
    "cmd": ("cmd",),
}
_FALLBACKS = {"zsh": ("/bin/zsh",), "bash": ("/bin/bash", "/usr/bin/bash"), "sh": ("/bin/sh",)}
_NAME_OF_PROGRAM = {program: name for name, programs in _PROGRAMS.items() for program in programs}
_LAST_RESORT = ShellInfo(name="sh", path="/bin/sh")


def detect_shell(login_shell: str | None, search_path: str) -> ShellInfo:
    """Return the shell to report for a passwd entry's shell; `search_path` is the server's PATH."""
    if login_shell:
        stem = os.path.splitext(os.path.basename(login_shell))[0]
        name = _NAME_OF_PROGRAM.get(stem)
        if name and (path := login_shell if os.path.isfile(login_shell) else _find(name, search_path)):
            return ShellInfo(name=name, path=path)
    for name in ("bash", "zsh"):
        if path := _find(name, search_path):
            return ShellInfo(name=name, path=path)
    return _LAST_RESORT


def login_shell(uid: int) -> str | None:
    """Return the shell in the passwd entry of a user, or None without an entry."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_shell
    except KeyError:
        return None


def _find(name: str, search_path: str) -> str | None:
    """Look for a kind of shell in PATH, then where it usually is."""
    for program in _PROGRAMS[name]:
        for folder in search_path.split(":"):
            path = os.path.join(folder, program)
            # A path from a relative entry of PATH means another file in every working directory.
            if folder.startswith("/") and os.path.isfile(path) and os.access(path, os.X_OK):
                return path
    return next((path for path in _FALLBACKS.get(name, ()) if os.path.isfile(path)), None)
