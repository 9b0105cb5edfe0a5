"""The shell of a call: its command line, its environment, and the sandbox it belongs into.

Shell tool contract, sections 3 and 4.  Pure; what is not a valid start is found by whoever starts it.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping

from execserver.core.env_policy import SERVER_CREDENTIALS
from execserver.mcp.sandbox_state import SandboxState
from execserver.mcp.tool import ExecParams

NETWORK_DISABLED = b"CODEX_SANDBOX_NETWORK_DISABLED"
# What a server above this one has set for its own shell means nothing to ours.
_OF_ANOTHER_SERVER = (b"CODEX_ESCALATE_SOCKET", b"BASH_EXEC_WRAPPER", b"EXEC_WRAPPER")
_OUTERMOST = (b"", b"0")  # values of SHLVL


def shell_argv(bash: bytes, params: ExecParams) -> list[bytes]:
    """Return the words that run a command: in a login shell, unless the client says no to that."""
    return [bash, b"-c" if params.login is False else b"-lc", encoded(params.command)]


def shell_environment(inherited: Mapping[bytes, bytes], state: SandboxState) -> dict[bytes, bytes]:
    """Return the server's environment as the shell gets it.

    The credentials of the server itself stay out of it, as with every process that this program starts; the
    contract's server hands them on.
    """
    left_out = (*SERVER_CREDENTIALS, *_OF_ANOTHER_SERVER)
    env = {name: value for name, value in inherited.items() if name not in left_out}
    if not state.network:
        env[NETWORK_DISABLED] = b"1"
        if env.get(b"SHLVL", b"0") in _OUTERMOST:
            # The filter refuses getpeername, from which an outermost Bash concludes that it serves a network
            # connection: it would read the person's ~/.bashrc before each command.
            env[b"SHLVL"] = b"1"
    return env


def folder(server_cwd: str, path: str) -> bytes:
    """Return a client's path to a folder; a relative one begins at the server's own folder."""
    return encoded(os.path.join(server_cwd, path))


def encoded(text: str) -> bytes:
    """Return a client's text as the operating system takes it."""
    return text.encode("utf-8", "surrogatepass")
