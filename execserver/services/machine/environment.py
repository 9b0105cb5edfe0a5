"""What the server reports about its machine: looked up once at the start, kept as JSON text.

Clients of the June 2026 contract call `environment/info` and read the shell; newer ones read the same object
from the result of `initialize`, and send some requests only if its capabilities list them.  It holds only
what is true of this server, and omits what it does not know (wire contract, sections 10 and 14).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec

from execserver.protocol.environment import (
    Capabilities,
    EnvironmentInfo,
    EnvironmentStatus,
    EnvironmentStatusResponse,
    Extensions,
    ShellInfo,
)
from execserver.protocol.errors import InternalError
from execserver.protocol.methods import METHODS
from execserver.protocol.paths import PathUri
from execserver.protocol.record import encode_record, encode_value
from execserver.protocol.session import KeptSession
from execserver.sandbox.backends.probe_egress import check_masking
from execserver.services.machine.shell import detect_shell, login_shell
from execserver.settings import Settings
from execserver.version import CONTRACT_VERSION_VARIABLE, __version__, contract_version


def home_folder(uid: int) -> bytes | None:
    """Return the home directory in the passwd entry of a user, or None without an entry."""
    import pwd

    try:
        return os.fsencode(pwd.getpwuid(uid).pw_dir)
    except KeyError:
        return None


class EnvironmentService:
    """The answers about the machine; all but `sandbox` are made in the constructor."""

    __slots__ = ("info", "sandbox", "status")

    def __init__(
        self,
        environ: Mapping[bytes, bytes],
        sandbox: Callable[[], msgspec.Raw] | None = None,
        settings: Settings | None = None,
        *,
        find_login_shell: Callable[[int], str | None] = login_shell,
        find_home: Callable[[int], bytes | None] = home_folder,
    ) -> None:
        """Look at the machine; `environ` is the environment the server was started with.

        `sandbox` returns the answer about sandboxes, which may take a while; `settings` say what is allowed.
        """
        self.sandbox = sandbox or _nobody_looks
        uid = os.getuid()
        search_path = os.fsdecode(environ.get(b"PATH", b""))
        shell = detect_shell(find_login_shell(uid), search_path)
        self.info = msgspec.Raw(encode_known(describe(environ, shell, find_home(uid), settings)))
        self.status = msgspec.Raw(encode_record(EnvironmentStatusResponse(status=EnvironmentStatus.READY)))

    def initialize_result(self, session_id: str, kept: KeptSession | None = None) -> msgspec.Raw:
        """Return the result of `initialize` for a session; `kept` if it is a kept one."""
        session = msgspec.json.encode(session_id)
        more = b"" if kept is None else b',"kept":%b' % msgspec.json.encode(kept)
        return msgspec.Raw(b'{"sessionId":%b,"environmentInfo":%b%b}' % (session, self.info, more))


_VERSION_VARIABLE = CONTRACT_VERSION_VARIABLE.encode()


def describe(
    environ: Mapping[bytes, bytes], shell: ShellInfo, passwd_home: bytes | None, settings: Settings | None
) -> EnvironmentInfo:
    """Return the machine's description."""
    # `provider_id` stays out: what it means is not known.
    settings = settings or Settings()
    cwd = _working_directory()
    temporary = environ.get(b"TMPDIR")
    folder = os.path.join(cwd or b"/", temporary) if temporary else None
    return EnvironmentInfo(
        shell=shell,
        executor_version=contract_version(os.fsdecode(environ.get(_VERSION_VARIABLE, b""))),
        cwd=None if cwd is None else PathUri.from_native(cwd),
        user_home_dir=_home(environ.get(b"HOME"), passwd_home),
        platform_os="linux",
        temporary_directories=() if folder is None else (PathUri.from_native(folder),),
        temp_dir=PathUri.from_native(folder or b"/tmp"),
        capabilities=capabilities(check_masking(environ).works, proxies=not settings.survive_crash),
        execserver=extensions(settings),
    )


def capabilities(masks: bool, *, proxies: bool = True) -> Capabilities:
    """Return which parts of the newest contract this server keeps.

    `masks` says whether it can mask, `proxies` whether a process can have a network proxy.
    """
    return Capabilities(
        network_proxy_launch=proxies,
        network_proxy_review_domains=proxies,
        credential_masking=masks and proxies,
        credential_masking_custom_providers=masks and proxies,
        fs_watch_missing="fs/watchMissing" in METHODS,
        capability_discovery_sandbox="capabilityRoots/discoverV1" in METHODS,
        capability_discovery_v2="capabilities/discoverV2" in METHODS,
        environment_config_read="environmentConfig/read" in METHODS,
        http_header_env_vars=True,
        sandboxed_file_streaming=True,
        file_write_streaming="fs/writeBlock" in METHODS,
        shell_snapshot_v2=True,
    )


def extensions(settings: Settings) -> Extensions:
    """Return the extensions of this server, which no contract has."""
    return Extensions(
        version=__version__,
        process_resize="process/resize" in METHODS,
        process_close_stdin="process/closeStdin" in METHODS,
        process_list="process/list" in METHODS,
        process_signals=True,
        output_gaps=True,
        sandbox_refusals=True,
        environment_sandbox="environment/sandbox" in METHODS,
        kept_sessions="session/keep" in METHODS,
        process_watch="process/watch" in METHODS,
        process_log="process/log" in METHODS,
        output_spool_bytes=settings.spool_bytes,
        fs_change="fs/rename" in METHODS,
        fs_hash="fs/hash" in METHODS,
        fs_glob="fs/glob" in METHODS,
        fs_search="fs/search" in METHODS,
        fs_archive="fs/archive" in METHODS,
        fs_extract="fs/extract" in METHODS,
        fs_many="fs/writeMany" in METHODS,
        fs_watch="fs/watch" in METHODS,
        fs_gitignore=True,
        audit_head=bool(settings.audit),
        process_limits=not settings.survive_crash,
        process_recording=bool(settings.audit) and not settings.survive_crash,
        binary_messages=True,
        fs_write_part="fs/writePart" in METHODS,
        port_forward=("none", "loopback", "any")[settings.forward_reach],
    )


def user_home(environ: Mapping[bytes, bytes]) -> bytes | None:
    """Return the home directory of the server's user, as `environment/info` tells it."""
    home = _home(environ.get(b"HOME"), home_folder(os.getuid()))
    return None if home is None else home.native()


def encode_known(info: EnvironmentInfo) -> bytes:
    """Return the JSON text of a description without its unknown members (None)."""
    members = msgspec.to_builtins(info, enc_hook=encode_value)
    return msgspec.json.encode({name: value for name, value in members.items() if value is not None})


def _nobody_looks() -> msgspec.Raw:
    raise InternalError("which sandbox works here is unknown")


def _home(variable: bytes | None, passwd_home: bytes | None) -> PathUri | None:
    """Return the home directory; the passwd entry counts only if HOME is missing or empty.

    A relative path is no home directory.
    """
    home = variable or passwd_home
    return PathUri.from_native(home) if home and home.startswith(b"/") else None


def _working_directory() -> bytes | None:
    try:
        return os.getcwdb()
    except OSError:
        return None  # the directory was removed
