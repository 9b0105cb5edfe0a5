"""Where this program's own files are, for starting it again in another role.

The commands need neither a search path nor an environment variable.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ZYGOTE_ARGUMENT = "--execserver-zygote"
DOCTOR_ARGUMENT = "--execserver-doctor"
SEARCH_ARGUMENT = "--execserver-search-lines"
EGRESS_ARGUMENT = "--execserver-egress"
CAN_RESUME_ARGUMENT = "--execserver-can-resume"
STATE_VARIABLE = "EXECSERVER_HANDED_OVER"  # the descriptor of the state that a server hands over by an exec
UPGRADE_SOCKET = "\0execserver-upgrade-%d"  # with the server's pid: an abstract socket
TOKEN_STORE_VARIABLE = "EXECSERVER_TOKEN_STORE"
_SANDBOX_PROGRAM = "sandbox-init"
TOKEN_STORE_FILE = b"tokens.json"

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_MAIN_SCRIPT = os.path.join(_PACKAGE, "__main__.py")
# Isolated and without `site`: helpers need the standard library only, and this saves a fifth of their start.
_INTERPRETER_OPTIONS = ("-I", "-S")

_home: list[bytes] = []  # of this user, once it was looked up
_homes_resolved: dict[bytes, bytes] = {}  # by what CODEX_HOME names


class ExecServerRuntimePaths:
    """The server's own executable and the sandbox helper: absolute paths, which are not checked."""

    __slots__ = ("codex_linux_sandbox_exe", "codex_self_exe")

    def __init__(self, codex_self_exe: str, codex_linux_sandbox_exe: str | None = None) -> None:
        self.codex_self_exe = codex_self_exe
        self.codex_linux_sandbox_exe = codex_linux_sandbox_exe

    @classmethod
    def detect(cls) -> ExecServerRuntimePaths:
        """Return the paths of the running program, symlinks to it resolved."""
        if _frozen_start():
            return cls(_frozen_start()[-2])
        return cls(os.path.realpath(sys.argv[0] or _MAIN_SCRIPT))

    def zygote_command(self) -> list[bytes]:
        """Return the command that starts a zygote, ready for exec."""
        return self.command(ZYGOTE_ARGUMENT)

    def doctor_command(self) -> list[bytes]:
        """Return the command that prints what enforces sandboxes here, as JSON.

        Not the verb: called `codex`, this program has no verbs of its own.
        """
        return self.command(DOCTOR_ARGUMENT, "--json")

    def command(self, *arguments: str) -> list[bytes]:
        """Return the command that starts this program with arguments, ready for exec."""
        return [os.fsencode(word) for word in (*self._self_command(), *arguments)]

    def server_command(self, arguments: Iterable[str]) -> list[str]:
        """Return the command that starts a server, from the files that this process runs from."""
        return [*(_frozen_start() or (sys.executable, "-I", _MAIN_SCRIPT)), *arguments]

    def egress_command(self, *arguments: str) -> list[bytes]:
        """Return the command that starts a proxy, ready for exec; it needs more than the standard library."""
        own = [*_frozen_start()] or [sys.executable, "-I", _MAIN_SCRIPT]
        return [os.fsencode(word) for word in (*own, EGRESS_ARGUMENT, *arguments)]

    def program_folder(self) -> str:
        """Return the directory of the running program's own files."""
        return os.path.dirname(_frozen_start()[-4] if _frozen_start() else _PACKAGE)

    def program_folders(self) -> list[str]:
        """Return every directory from which a start of this program takes files, besides the system's own."""
        if carries_its_c_library():
            return [self.program_folder()]  # the interpreter is in there, too
        return [self.program_folder(), *{sys.base_prefix, sys.prefix, os.path.dirname(sys.executable)}]

    @staticmethod
    def sandbox_program() -> bytes:
        """Return the path of the compiled filter template in this program's tree; b"" where there is none."""
        words = _frozen_start()
        program = os.path.join(os.path.dirname(words[-4]), _SANDBOX_PROGRAM) if words else ""
        return os.fsencode(program) if program and os.access(program, os.X_OK) else b""

    @staticmethod
    def unpacked_folder() -> bytes | None:
        """Return the directory of this program's unpacked trees; None if it runs from source."""
        words = _frozen_start()
        return os.fsencode(os.path.dirname(os.path.dirname(words[-4]))) if words else None

    def _self_command(self) -> list[str]:
        return [*_frozen_start()] or [sys.executable, *_INTERPRETER_OPTIONS, _MAIN_SCRIPT]


def token_stores(environ: Mapping[bytes, bytes]) -> list[bytes]:
    """Return the folders that may hold this user's list of tokens; the first is the one in use.

    All of them, not only the one in use, are to be kept from commands: the next start may lack a variable.
    """
    homes = (environ.get(b"HOME", b""), home_of_user())
    named = [
        environ.get(TOKEN_STORE_VARIABLE.encode(), b""),
        *(folder + b"/execserver/tokens" for folder in [environ.get(b"XDG_CONFIG_HOME", b"")] if folder),
        *(folder + b"/.config/execserver/tokens" for folder in homes if folder),
    ]
    return list(dict.fromkeys(os.path.realpath(folder) for folder in named if folder.startswith(b"/")))


def codex_home(environ: Mapping[bytes, bytes], home: bytes | None) -> bytes:
    """Return the folder of codex's own files for a server with this environment."""
    named = environ.get(b"CODEX_HOME")
    return os.path.abspath(named) if named else os.path.join(home or b"/", b".codex")


def certificate_folder(environ: Mapping[bytes, bytes]) -> bytes:
    """Return the folder for the certificates of processes with masked credentials.

    Symlinks on the way to CODEX_HOME are resolved once: else a command that can replace one would have views
    protect another folder than the one in use.
    """
    home = codex_home(environ, environ.get(b"HOME"))
    if home not in _homes_resolved:
        _homes_resolved[home] = os.path.realpath(home)
    return os.path.join(_homes_resolved[home], b"proxy")


def home_of_user() -> bytes:
    """Return this user's home as the system knows it, or b"": HOME may say something else next time."""
    if not _home:
        import pwd  # late: few processes ask

        try:
            _home.append(os.fsencode(pwd.getpwuid(os.geteuid()).pw_dir))
        except KeyError:
            _home.append(b"")
    return _home[0]


def carries_its_c_library() -> bool:
    """Return whether this process runs with the dynamic loader and C library of its unpacked tree."""
    return "--library-path" in _frozen_start()


def _frozen_start() -> tuple[str, ...]:
    """Return the words that start this program again from its unpacked tree; none if it runs from source.

    The last word but one is the file that the user started; starting that would look for its tree first.  The
    last but three is the first script of the tree.
    """
    words: tuple[str, ...] = getattr(sys, "frozen", ())
    return words
