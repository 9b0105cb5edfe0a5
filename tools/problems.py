"""What may go wrong while the project is set up, in plain words and with the cure."""

from __future__ import annotations

import errno
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


class Problem(Exception):
    """Something a person has to put right: what is wrong, and the cure."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(what)
        self.what = what
        self.cure = cure


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
    if "No module named venv" in output or "ensurepip" in output:
        return Problem(
            f"this Python ({sys.executable}) cannot make environments: its venv module is missing",
            f"install it, e.g. `apt install python3-venv` (or python{version}-venv), and start again",
        )
    return Problem(f"making .venv failed:\n{_tail(output)}", "remove .venv and start again")


def explain_pip(output: str) -> Problem:
    """Return why `pip install` failed."""
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
    return Problem(
        f"pip failed:\n{_tail(output)}", "put that right and start again; remove .venv if in doubt"
    )


def from_os_error(error: OSError, root: Path) -> Problem:
    """Return what an operating system error means for the project folder."""
    again = "and start again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        where = error.filename or root
        return Problem(f"cannot write {where}", f"make it yours, or copy the project elsewhere, {again}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Problem(f"no space left for {root / '.venv'}", f"it takes about 250 MB; free some {again}")
    return Problem(str(error), f"put that right {again}")


def _tail(output: str, lines: int = 12) -> str:
    return "\n".join(f"  {line}" for line in output.strip().splitlines()[-lines:])
