"""Params, results and notifications of processes (wire contract, section 8; extensions at the end)."""

from __future__ import annotations

import enum

import msgspec

from execserver.protocol.environment import ShellInfo
from execserver.protocol.network import NetworkProxyLaunch
from execserver.protocol.paths import PathUri
from execserver.protocol.record import I32, U16, U64, USIZE, Base64, Record, UuidText, refuse_beyond_u64
from execserver.protocol.resource_limits import ProcessEnd, ResourceLimits, ResourceUsage
from execserver.protocol.sandbox import FileSystemSandboxContext


class ExecEnvPolicyInherit(enum.Enum):
    """Which of the server's own variables a process starts from."""

    CORE = "core"
    ALL = "all"
    NONE = "none"


class ExecEnvPolicy(Record, frozen=True, kw_only=True):
    """How the environment of a process is made before the request's `env` is laid over it."""

    inherit: ExecEnvPolicyInherit
    ignore_default_excludes: bool
    exclude: tuple[str, ...]
    set: dict[str, str]
    include_only: tuple[str, ...]


class ExecMetadata(Record, frozen=True, kw_only=True):
    """What a start belongs to, for the client's own records; it changes nothing."""

    thread_id: UuidText | None = None
    tool_call_id: str | None = None


class ManagedNetworkSandboxContext(Record, frozen=True, kw_only=True):
    """What a managed network leaves open; without effect on Linux, only its types are checked."""

    loopback_ports: tuple[U16, ...] = ()
    allow_local_binding: bool = False
    allow_unix_sockets: tuple[str, ...] = ()
    dangerously_allow_all_unix_sockets: bool = False


class ShellSnapshotRequest(Record, frozen=True, kw_only=True):
    """Run a login command with the state its shell's start-up files left; `scope_id` names the use."""

    scope_id: str
    shell: ShellInfo


class RecordedStreams(enum.Enum):
    """What of a process is recorded: its output, or also what is typed while the terminal shows it."""

    OUTPUT = "output"
    ALL = "all"


class ExecParams(Record, frozen=True, kw_only=True):
    """What to run: `argv` in `cwd` with exactly `env`, on pipes or on a terminal.

    With `limits`, even empty ones, its end is told with the reason and with what was used.
    """

    process_id: str
    metadata: ExecMetadata | None = None
    argv: tuple[str, ...]
    cwd: PathUri
    env_policy: ExecEnvPolicy | None = None
    shell_snapshot: ShellSnapshotRequest | None = None
    env: dict[str, str]
    tty: bool
    pipe_stdin: bool = False
    arg0: str | None = None
    sandbox: FileSystemSandboxContext | None = None
    enforce_managed_network: bool = False
    managed_network: ManagedNetworkSandboxContext | None = None
    network_proxy: NetworkProxyLaunch | None = None
    process_name: str | msgspec.UnsetType | None = msgspec.UNSET
    limits: ResourceLimits | msgspec.UnsetType | None = msgspec.UNSET
    record: RecordedStreams | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def masks_credentials(self) -> bool:
        """Whether the process is to see stand-ins for its credentials."""
        return self.network_proxy is not None and self.network_proxy.proxy.credential_masking


class ExecSandboxType(enum.Enum):
    """What holds a process back."""

    NONE = "none"
    LINUX_SECCOMP = "linuxSeccomp"


class ExecResponse(Record, frozen=True, kw_only=True):
    """The process runs.

    `enforced`, if `limits` were asked for, has each limit it got: `kernel`, `server`, `sampled`, or `none`.
    """

    process_id: str
    sandbox_type: ExecSandboxType = ExecSandboxType.NONE
    enforced: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class ExecOutputStream(enum.Enum):
    """Where a chunk of output came from; a terminal has only one stream."""

    STDOUT = "stdout"
    STDERR = "stderr"
    PTY = "pty"


class ReadParams(Record, frozen=True, kw_only=True):
    """Where to start in one process's retained output, and how long to wait for more."""

    process_id: str
    after_seq: U64 | None = None
    max_bytes: USIZE | None = None
    wait_ms: U64 | None = None

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.after_seq, self.max_bytes, self.wait_ms)


class ProcessOutputChunk(Record, frozen=True, kw_only=True):
    """One piece of output as it was read from the process."""

    seq: U64
    stream: ExecOutputStream
    chunk: Base64


class ReadResponse(Record, frozen=True, kw_only=True):
    """Retained output and the state of the process.

    `oldest_seq` is the lowest seq still retained and `lost_bytes` how much output was dropped before it; both
    are 0 from servers that do not announce gaps.  `sandbox_refusal` is why nothing ran in the sandbox, left
    out where that is not known for certain.  `ended` and `usage` are as in `process/exited`.
    """

    chunks: tuple[ProcessOutputChunk, ...]
    next_seq: U64
    exited: bool
    exit_code: I32 | None = None
    closed: bool
    failure: str | None = None
    sandbox_denied: bool = False
    oldest_seq: U64 = 0
    lost_bytes: U64 = 0
    sandbox_refusal: str | msgspec.UnsetType = msgspec.UNSET
    ended: ProcessEnd | msgspec.UnsetType | None = msgspec.UNSET
    usage: ResourceUsage | msgspec.UnsetType = msgspec.UNSET


class WriteParams(Record, frozen=True, kw_only=True):
    """Bytes for a process's input; a `write_id` seen before is not written again.

    The contracts before June 2026 have no `write_id`: None then, and every write counts.
    """

    process_id: str
    chunk: Base64
    write_id: str | None = None


class WriteStatus(enum.Enum):
    """What became of a write."""

    ACCEPTED = "accepted"
    UNKNOWN_PROCESS = "unknownProcess"
    STDIN_CLOSED = "stdinClosed"
    STARTING = "starting"


class WriteResponse(Record, frozen=True, kw_only=True):
    """What became of a write; accepted means queued."""

    status: WriteStatus


class ProcessSignal(enum.Enum):
    """The signals a client may send; all but `interrupt` are an extension and may be written in capitals."""

    INTERRUPT = "interrupt"
    HUP = "hup"
    INT = "int"
    QUIT = "quit"
    TERM = "term"
    KILL = "kill"
    USR1 = "usr1"
    USR2 = "usr2"
    CONT = "cont"
    STOP = "stop"
    WINCH = "winch"

    @classmethod
    def _missing_(cls, value: object) -> ProcessSignal | None:
        """Find a name in capitals, with or without `SIG` before it."""
        if isinstance(value, str) and value.isupper():
            lower = value.removeprefix("SIG").lower()
            return next((signal for signal in cls if signal.value == lower), None)
        return None


class SignalParams(Record, frozen=True, kw_only=True):
    """Which signal goes to the group of which process."""

    process_id: str
    signal: ProcessSignal


class SignalResponse(Record, frozen=True, kw_only=True):
    """Empty: also for unknown and ended processes."""


class TerminateParams(Record, frozen=True, kw_only=True):
    """Which process to kill, with its group."""

    process_id: str


class TerminateResponse(Record, frozen=True, kw_only=True):
    """Whether it had been running."""

    running: bool


class ExecOutputDeltaNotification(Record, frozen=True, kw_only=True):
    """A process wrote something."""

    process_id: str
    seq: U64
    stream: ExecOutputStream
    chunk: Base64


class ExecExitedNotification(Record, frozen=True, kw_only=True):
    """A process ended; output may still follow.

    `sandbox_denied` is None from servers that do not report it; `sandbox_refusal` is left out unless
    nothing ran.  `ended` (null: it exited by itself) and `usage` come if the start had `limits`.
    """

    process_id: str
    seq: U64
    exit_code: I32
    sandbox_denied: bool | None = None
    sandbox_refusal: str | msgspec.UnsetType = msgspec.UNSET
    ended: ProcessEnd | msgspec.UnsetType | None = msgspec.UNSET
    usage: ResourceUsage | msgspec.UnsetType = msgspec.UNSET


class ExecClosedNotification(Record, frozen=True, kw_only=True):
    """All output of a process was sent; always its last message."""

    process_id: str
    seq: U64


class ResizeParams(Record, frozen=True, kw_only=True):
    """The new size of a process's terminal, in character cells."""

    process_id: str
    rows: U16
    cols: U16


class ResizeResponse(Record, frozen=True, kw_only=True):
    """Empty."""


class CloseStdinParams(Record, frozen=True, kw_only=True):
    """Which process is to see the end of its input."""

    process_id: str


class CloseStdinResponse(Record, frozen=True, kw_only=True):
    """What became of it: accepted, or why there was nothing to close."""

    status: WriteStatus


class ProcessListEntry(Record, frozen=True, kw_only=True):
    """One process of the session; what the system does not report, or no longer, is None.

    `usage` is that of a process that has exited, `ended` why if it did not do so by itself.
    """

    process_id: str
    argv: tuple[str, ...]
    pid: U64 | None = None
    tty: bool
    running: bool
    exit_code: I32 | None = None
    started_at_ms: U64
    cpu_time_ms: U64 | None = None
    rss_bytes: U64 | None = None
    ended: ProcessEnd | None = None
    usage: ResourceUsage | None = None


class SessionIdentity(Record, frozen=True, kw_only=True):
    """Who opened the session, as the listener has proven it: how, and under which name."""

    way: str
    name: str


class ProcessListResponse(Record, frozen=True, kw_only=True):
    """The processes of the session, ended ones included as long as they are retained.

    All were started by the peer that opened the session; `identity` is None where nobody was asked.
    """

    processes: tuple[ProcessListEntry, ...]
    identity: SessionIdentity | None = None
