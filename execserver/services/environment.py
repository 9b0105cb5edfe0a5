"""What the server tells of its machine: looked up once at the start, kept as JSON text.

Clients of the June 2026 contract ask `environment/info` and get the shell alone.  Newer ones read the longer
form out of the initialize result and gate requests on its capabilities; it holds only what is true of this
server, and leaves out what it does not know (wire contract, sections 10 and 14.1).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec

from execserver import __version__
from execserver.protocol.environment import (
    Capabilities,
    EnvironmentInfo,
    EnvironmentInfoResponse,
    EnvironmentStatus,
    EnvironmentStatusResponse,
    Extensions,
)
from execserver.protocol.errors import InternalError
from execserver.protocol.methods import METHODS
from execserver.protocol.paths import PathUri
from execserver.protocol.record import encode_record, encode_value
from execserver.services.shell import detect_shell, login_shell


def home_folder(uid: int) -> bytes | None:
    """Return the home folder in the passwd entry of a user, or None without an entry."""
    import pwd

    try:
        return os.fsencode(pwd.getpwuid(uid).pw_dir)
    except KeyError:
        return None


class EnvironmentService:
    """The answers about the machine, all but `sandbox` made when the service is."""

    __slots__ = ("_info_json", "info", "sandbox", "status")

    def __init__(
        self,
        environ: Mapping[bytes, bytes],
        sandbox: Callable[[], msgspec.Raw] | None = None,
        *,
        find_login_shell: Callable[[int], str | None] = login_shell,
        find_home: Callable[[int], bytes | None] = home_folder,
    ) -> None:
        """Look at the machine; `environ` is the environment the server was started with.

        `sandbox` returns the answer about sandboxes, which may take a while.
        """
        self.sandbox = sandbox or _nobody_looks
        uid = os.getuid()
        search_path = os.fsdecode(environ.get(b"PATH", b""))
        shell = detect_shell(find_login_shell(uid), search_path)
        described = describe(environ, EnvironmentInfoResponse(shell=shell), find_home(uid))
        self.info = msgspec.Raw(encode_record(EnvironmentInfoResponse(shell=shell)))
        self.status = msgspec.Raw(encode_record(EnvironmentStatusResponse(status=EnvironmentStatus.READY)))
        self._info_json = encode_known(described)

    def initialize_result(self, session_id: str) -> msgspec.Raw:
        """Return the result of `initialize` for a session."""
        session = msgspec.json.encode(session_id)
        return msgspec.Raw(b'{"sessionId":%b,"environmentInfo":%b}' % (session, self._info_json))


def describe(
    environ: Mapping[bytes, bytes], known: EnvironmentInfoResponse, passwd_home: bytes | None
) -> EnvironmentInfo:
    """Return the newest form of the machine's description."""
    cwd = _working_directory()
    temporary = environ.get(b"TMPDIR")
    folder = os.path.join(cwd or b"/", temporary) if temporary else None
    return EnvironmentInfo(
        shell=known.shell,
        executor_version=__version__,
        cwd=None if cwd is None else PathUri.from_native(cwd),
        user_home_dir=_home(environ.get(b"HOME"), passwd_home),
        platform_os="linux",
        temporary_directories=() if folder is None else (PathUri.from_native(folder),),
        temp_dir=PathUri.from_native(folder or b"/tmp"),
        capabilities=capabilities(),
        execserver=extensions(),
    )


def capabilities() -> Capabilities:
    """Return what of the newest contract this server keeps."""
    return Capabilities(
        http_header_env_vars=True,
        sandboxed_file_streaming=True,
        file_write_streaming="fs/writeBlock" in METHODS,
    )


def extensions() -> Extensions:
    """Return what this server has beyond any contract."""
    return Extensions(
        process_resize="process/resize" in METHODS,
        process_close_stdin="process/closeStdin" in METHODS,
        process_list="process/list" in METHODS,
        process_signals=True,
        output_gaps=True,
        sandbox_refusals=True,
        environment_sandbox="environment/sandbox" in METHODS,
    )


def encode_known(info: EnvironmentInfo) -> bytes:
    """Return the JSON text of a description, without the members that are not known."""
    members = msgspec.to_builtins(info, enc_hook=encode_value)
    return msgspec.json.encode({name: value for name, value in members.items() if value is not None})


def _nobody_looks() -> msgspec.Raw:
    raise InternalError("which sandbox works here is unknown")


def _home(variable: bytes | None, passwd_home: bytes | None) -> PathUri | None:
    """Return the home folder; a relative one names none, and only a missing one is looked up."""
    home = variable or passwd_home
    return PathUri.from_native(home) if home and home.startswith(b"/") else None


def _working_directory() -> bytes | None:
    try:
        return os.getcwdb()
    except OSError:
        return None  # the folder was removed
