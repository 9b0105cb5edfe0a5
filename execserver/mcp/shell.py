"""The shell of a call: its command line, its environment and its working directory.

Shell tool contract.  Pure; whoever starts the shell finds out whether the start is valid.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence

from execserver.core.env_policy import SERVER_CREDENTIALS
from execserver.mcp.sandbox_state import SandboxState
from execserver.mcp.tool import ExecParams

NETWORK_DISABLED = b"CODEX_SANDBOX_NETWORK_DISABLED"
# A server that runs us in its shell has set these for that shell; they must not reach ours.
_OF_ANOTHER_SERVER = (b"CODEX_ESCALATE_SOCKET", b"BASH_EXEC_WRAPPER", b"EXEC_WRAPPER")
_OUTERMOST = (b"", b"0")  # values of SHLVL
_WORD_BYTES = 32 * os.sysconf("SC_PAGE_SIZE")  # of one argument with its NUL (the kernel's MAX_ARG_STRLEN)


def shell_argv(bash: bytes, params: ExecParams) -> list[bytes]:
    """Return the words that run a command: in a login shell, unless the client sets `login` to false."""
    return [bash, b"-c" if params.login is False else b"-lc", encoded(params.command)]


def shell_environment(inherited: Mapping[bytes, bytes], state: SandboxState) -> dict[bytes, bytes]:
    """Return the environment of the shell, made from the server's.

    It lacks the server's own credentials, like that of every command this program starts; the reference
    server passes them on.
    """
    left_out = (*SERVER_CREDENTIALS, *_OF_ANOTHER_SERVER)
    env = {name: value for name, value in inherited.items() if name not in left_out}
    if not state.network:
        env[NETWORK_DISABLED] = b"1"
        if env.get(b"SHLVL", b"0") in _OUTERMOST:
            # The filter refuses getpeername, from which an outermost Bash (SHLVL) concludes that its stdin is
            # a network connection: it would read the user's ~/.bashrc before each command.
            env[b"SHLVL"] = b"1"
    return env


def folder(server_cwd: str, path: str) -> bytes:
    """Return a client's path to a directory; a relative one begins at the server's own directory.

    Raises OSError for an empty path, as the kernel does: it names no directory, not the server's either.
    """
    if not path:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    return encoded(os.path.join(server_cwd, path))


def check_size(argv: Sequence[bytes]) -> None:
    """Raise OSError for words of which the kernel would execute no program.

    Asked before the start: what a sandbox says of a shell that cannot be executed looks like a denial.
    """
    if any(len(word) >= _WORD_BYTES for word in argv):
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))


def encoded(text: str) -> bytes:
    """Return a client's text as bytes for the operating system."""
    return text.encode("utf-8", "surrogatepass")
