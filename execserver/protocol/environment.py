"""The description of the server's machine and of the server's abilities (wire contract, sections 10, 14)."""

from __future__ import annotations

import enum

from execserver.protocol.paths import PathUri
from execserver.protocol.record import U64, Record


class ShellInfo(Record, frozen=True, kw_only=True):
    """The user's login shell: its family and where it is."""

    name: str
    path: str


class Capabilities(Record, frozen=True, kw_only=True):
    """What a client may ask of this server beyond the June 2026 contract; clients gate requests on it.

    A capability stays false until everything it promises is there.
    """

    network_proxy_launch: bool = False
    network_proxy_review_domains: bool = False
    credential_masking: bool = False
    credential_masking_custom_providers: bool = False
    capability_discovery_sandbox: bool = False
    fs_watch_missing: bool = False
    capability_discovery_v2: bool = False
    environment_config_read: bool = False
    http_header_env_vars: bool = False
    sandboxed_file_streaming: bool = False
    file_write_streaming: bool = False
    shell_snapshot_v2: bool = False
    windows_mxc: bool = False
    linux_root_write_preserves_devices: bool = False
    linux_approved_root_write_preserves_restrictions: bool = False


class Extensions(Record, frozen=True, kw_only=True):
    """What only this server has; the names are not used by any other."""

    version: str | None = None
    process_resize: bool = False
    process_close_stdin: bool = False
    process_list: bool = False
    process_signals: bool = False
    output_gaps: bool = False
    environment_sandbox: bool = False
    sandbox_refusals: bool = False
    kept_sessions: bool = False
    process_watch: bool = False
    process_log: bool = False
    output_spool_bytes: U64 = 0
    port_forward: str | None = None
    fs_change: bool = False
    fs_hash: bool = False
    fs_glob: bool = False
    fs_search: bool = False
    fs_archive: bool = False
    fs_extract: bool = False
    fs_many: bool = False
    fs_watch: bool = False
    fs_gitignore: bool = False
    audit_head: bool = False
    process_limits: bool = False
    process_recording: bool = False
    binary_messages: bool = False
    fs_write_part: bool = False


class EnvironmentInfo(Record, frozen=True, kw_only=True):
    """The machine's description: the answer to `environment/info`, and a member of the initialize result.

    All but `shell` may be missing in what another server sends.
    """

    shell: ShellInfo
    executor_version: str | None = None
    provider_id: str | None = None
    cwd: PathUri | None = None
    user_home_dir: PathUri | None = None
    platform_os: str | None = None
    prepend_path_dirs: tuple[PathUri, ...] = ()
    temporary_directories: tuple[PathUri, ...] = ()
    temp_dir: PathUri | None = None
    capabilities: Capabilities = Capabilities()
    execserver: Extensions | None = None


class EnvironmentStatus(enum.Enum):
    """Whether the machine takes work."""

    READY = "ready"


class EnvironmentStatusResponse(Record, frozen=True, kw_only=True):
    """The answer to `environment/status`."""

    status: EnvironmentStatus


class SandboxCheck(Record, frozen=True, kw_only=True):
    """One thing a sandbox needs: whether it works here; if not, the blocker and its remedy."""

    name: str
    works: bool
    detail: str
    blocker: str | None = None
    cure: str | None = None


class SandboxPolicy(Record, frozen=True, kw_only=True):
    """What enforces one kind of policy here; without a back end it is refused, for the reason given."""

    name: str
    back_end: str | None = None
    detail: str = ""
    blocker: str | None = None
    cure: str | None = None


class Bubblewrap(Record, frozen=True, kw_only=True):
    """The bubblewrap that can be a back end; `identity`: device, inode, size, time of change (ns).

    A `joinable` one serves for managed networks, too: the server can listen in the networks that it makes.
    """

    path: str
    version: str
    setuid: bool
    argv0: bool
    bind_fd: bool
    joinable: bool
    identity: tuple[int, ...]


class EnvironmentSandboxResponse(Record, frozen=True, kw_only=True):
    """The answer to `environment/sandbox`, the same as `execserver doctor --json` gives.

    `native` says that namespaces of our own make a sandbox root, `mounts` (`new` or `old`) with which calls,
    and `user_namespace` whether in a user namespace; `landlock_abi` is 0 without Landlock.
    """

    kernel: str
    uid: int
    native: bool
    mounts: str
    user_namespace: bool
    seccomp: bool
    landlock_abi: int
    bubblewrap: Bubblewrap | None = None
    checks: tuple[SandboxCheck, ...]
    policies: tuple[SandboxPolicy, ...]
