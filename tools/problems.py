"""What may go wrong while the project is set up, in plain words and with the cure."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

_NETWORK_SIGNS = (
    "(from versions: none)",
    "Temporary failure in name resolution",
    "Name or service not known",
    "NewConnectionError",
    "ConnectTimeoutError",
    "Network is unreachable",
    "No route to host",
    "ProxyError",
    "SSLError",
    "Connection refused",
    "Read timed out",
)
_SPACE_SIGNS = ("No space left on device", "Disk quota exceeded")
_ACCESS_SIGNS = ("[Errno 13] Permission denied", "Read-only file system")
_NEEDED = (
    "it takes about 250 MB in the project's folder, and some more in the one for temporary files (TMPDIR)"
)


class Problem(Exception):
    """Something a person has to put right: what is wrong, and the cure."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(what)
        self.what = what
        self.cure = cure


class Failed(Exception):
    """A step or a process did not do what it must; the text says what came instead."""


def say(text: str) -> None:
    """Tell what is being done; on stderr, because stdout carries the listen URL."""
    sys.stderr.write(f"build.py: {text}\n")
    sys.stderr.flush()


def tell(problem: Problem) -> int:
    """Say what is wrong and what to do; return the exit status."""
    say(f"{problem.what}\n  What to do: {problem.cure}")
    return 1


def explain_venv(output: str) -> Problem:
    """Return why `python -m venv` failed."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    # A step of venv that fails, e.g. on a full disk, is named ensurepip as well, and its reason is lost.
    if "'ensurepip'" in output and "returned non-zero" in output:
        return Problem(
            f"making .venv failed where pip is put into it:\n{_tail(output, 3)}",
            f"see that there is space left ({_NEEDED}), and start again",
        )
    if "No module named venv" in output or "ensurepip" in output:
        return Problem(
            f"this Python ({sys.executable}) cannot make environments: its venv module is missing",
            f"install it, e.g. `apt install python3-venv` (or python{version}-venv), and start again",
        )
    if known := _explain_any(output):
        return known
    return Problem(f"making .venv failed:\n{_tail(output)}", "remove .venv and start again")


def explain_pip(output: str) -> Problem:
    """Return why `pip install` failed."""
    if known := _explain_any(output):
        return known
    if any(sign in output for sign in _NETWORK_SIGNS):
        return Problem(
            f"the pinned packages could not be downloaded:\n{_tail(output, 3)}",
            "connect to the network and start again; a mirror is named by PIP_INDEX_URL, a proxy by "
            "HTTPS_PROXY, a folder of wheels by PIP_FIND_LINKS with PIP_NO_INDEX=1",
        )
    if "No matching distribution" in output:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return Problem(
            f"a pinned package has no build for Python {version} here:\n{_tail(output, 3)}",
            "remove .venv and start build.py with another Python, 3.11 to 3.14",
        )
    if "Failed building wheel" in output or "metadata-generation-failed" in output:
        return Problem(
            f"a pinned package has no build for this machine, and compiling it failed:\n{_tail(output)}",
            "install a C compiler and the headers of Python (python3-dev), or start build.py with another "
            "Python, 3.11 to 3.14, after removing .venv",
        )
    return Problem(
        f"pip failed:\n{_tail(output)}", "put that right and start again; remove .venv if in doubt"
    )


def too_new(version: tuple[int, int], newest: tuple[int, int]) -> Problem:
    """Return what to do about a Python the pinned packages have no builds for."""
    have, last = (".".join(map(str, each)) for each in (version, newest))
    return Problem(
        f"this is Python {have}, and the pinned packages have builds for 3.11 to {last}",
        f"install one of these (e.g. `apt install python{last} python{last}-venv`) and start again",
    )


def not_ours(root: Path) -> Problem:
    """Return what to do about a project folder that cannot be written: read-only, or somebody else's."""
    owner = root.stat().st_uid
    whose = "" if owner == os.geteuid() else f", which belongs to {_name_of(owner)}"
    return Problem(
        f"cannot write into {root}{whose}", "copy the project to a folder of your own and start there"
    )


def from_os_error(error: OSError, root: Path) -> Problem:
    """Return what an operating system error means for the project folder."""
    again = "and start again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        where = error.filename or root
        return Problem(f"cannot write {where}", f"make it yours, or copy the project elsewhere, {again}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = error.filename or root / ".venv"
        return Problem(f"no space left for {where}", f"{_NEEDED}; free some {again}")
    return Problem(str(error), f"put that right {again}")


def _explain_any(output: str) -> Problem | None:
    """Return what failed for a reason that any program may fail for."""
    if any(sign in output for sign in _SPACE_SIGNS):
        return Problem(f"no space left:\n{_tail(output, 3)}", f"{_NEEDED}; free some and start again")
    if any(sign in output for sign in _ACCESS_SIGNS):
        return Problem(
            f"something cannot be written:\n{_tail(output, 3)}",
            "if .venv is somebody else's, remove it (or `chown -R` the project to you) and start again",
        )
    return None


def _name_of(user: int) -> str:
    import pwd  # only where there is a problem

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _tail(output: str, lines: int = 12) -> str:
    return "\n".join(f"  {line}" for line in output.strip().splitlines()[-lines:])
