"""The durations and limits for code with I/O: name with its unit, default, description.

A `Settings` is made at the start and passed on.  Limits that belong to one pure rule, such as how many file
handles a connection may have, are beside that rule.  Of these users set only what the command line has an
option for.  Tests shorten them through `Settings(name=value)` or, for a server in a process of its own,
through the variable EXECSERVER_SETTINGS (a JSON object), which is not a public interface.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OVERRIDE_VARIABLE = "EXECSERVER_SETTINGS"

_KIB = 1024
_MIB = 1024 * 1024


class SettingError(ValueError):
    """An override names an unknown setting, or its value is not a number that the setting can take."""


class Seconds:
    """A duration; the class attribute has the default, an instance of Settings the value."""

    def __init__(self, default: float, text: str) -> None:
        self.default = default
        self.text = text

    def __get__(self, instance: object, owner: type) -> float:
        # Only called on the class: an instance's own attribute shadows a descriptor without `__set__`.
        return self.default

    def check(self, value: object) -> float:
        """Return the value as a duration, or raise SettingError."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise SettingError(f"expected a number of seconds, got {value!r}")
        return float(value)


class Count:
    """A number of bytes or things; the class attribute has the default, an instance of Settings the value."""

    def __init__(self, default: int, text: str) -> None:
        self.default = default
        self.text = text

    def __get__(self, instance: object, owner: type) -> int:
        return self.default

    def check(self, value: object) -> int:
        """Return the value as a count, or raise SettingError."""
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise SettingError(f"expected a whole number, got {value!r}")
        return value


LIMIT_SETTINGS = (
    *("limit_process_memory_bytes", "limit_process_processes", "limit_process_cpu_percent"),
    *(
        "limit_process_wall_ms",
        "limit_process_cpu_ms",
        "limit_process_file_bytes",
        "limit_process_open_files",
    ),
    *("limit_session_memory_bytes", "limit_session_processes", "limit_session_cpu_percent"),
)


class Settings:
    """The values one server runs with; read-only once made.

    Unknown names and values of the wrong kind raise SettingError.
    """

    # Transports
    upgrade_timeout_s = Seconds(10.0, "a peer that has not finished its HTTP request by then is dropped")
    waiting_upgrades = Count(1024, "peers that are not upgraded yet; the oldest is dropped for a further one")
    ping_interval_s = Seconds(30.0, "an empty ping per WebSocket connection, this long apart")
    close_timeout_s = Seconds(5.0, "how long a WebSocket close handshake may take")
    keepalive_idle_s = Count(8, "silence before the kernel probes whether a peer is alive")
    keepalive_interval_s = Count(5, "between two such probes")
    keepalive_probes = Count(2, "unanswered probes that end the connection")
    # Of a silent peer, since its last sign of life.  More than idle time and interval, or one lost probe ends
    # the connection; less than with a further interval, or a dead peer is noticed late.
    tcp_user_timeout_s = Seconds(16.0, "unacknowledged data that ends the connection")
    listen_backlog = Count(1024, "connections the kernel holds until they are accepted")
    max_header_bytes = Count(16 * _KIB, "of one HTTP request head")
    max_frame_bytes = Count(16 * _MIB, "of one inbound WebSocket frame")
    max_message_bytes = Count(64 * _MIB, "of one inbound message, also of one line on stdin")
    max_fragments = Count(4096, "frames of one inbound message")
    client_message_bytes = Count(64 * _MIB, "a larger message ends a real client's connection")

    # As long as a client on the same machine takes to ask again, if it does nothing else.
    busy_poll_s = Seconds(0.0001, "to a client's next request, for which the loop stays awake; 0: never")

    concurrent_requests = Count(0, "of one connection at a time; 0: one, and those that wait delay no other")

    # Sessions and processes
    detached_session_ttl_s = Seconds(
        30.0, "a session without connection is kept; its processes are killed then"
    )
    max_detached_sessions = Count(1024, "kept at a time; the one detached longest ends for a further one")
    max_kept_sessions = Count(
        1024, "that stay longer or have a name, attached ones too; a further one is refused"
    )
    keep_max_s = Seconds(86400.0, "for which a client can have a session kept; --keep-max changes it")
    spool_bytes = Count(64 * _MIB, "of a process in a kept session, on disk; --spool-max changes it")
    spools_bytes = Count(4096 * _MIB, "of all such output; what is spooled then stays, and no more comes")
    closed_process_retention_s = Seconds(30.0, "a closed process can still be read, and keeps its id")
    spawn_timeout_s = Seconds(5.0, "an exec or chdir that hangs is given up, and a second zygote takes over")
    shutdown_grace_s = Seconds(2.0, "between the polite signal and SIGKILL when the server ends")
    retained_output_bytes = Count(1 * _MIB, "of output kept per process, oldest chunks dropped first")

    inherit_pid_namespace = Count(0, "1: sandboxed commands see the processes that the server sees")
    audit = Count(0, "1: an audit log is written; --audit")
    upgrade_on_hup = Count(0, "1: SIGHUP upgrades to what the server's file is now; --upgrade-on-hup")
    survive_crash = Count(0, "1: processes outlive a server that is killed; --survive-crash")
    crash_restarts = Count(3, "of a killed server within the time that follows; one more ends everything")
    crash_window_s = Seconds(60.0, "in which restarts of a killed server are counted")
    pass_trace = Count(0, "1: a process goes on with the trace of its start; --pass-trace")

    # Limits, each 0 for none: of a process the most that a client can ask for, and what it gets otherwise
    limit_process_memory_bytes = Count(0, "of a process and what it starts; --limit-process")
    limit_process_processes = Count(0, "that a process and what it starts may be, threads included")
    limit_process_cpu_percent = Count(0, "of one CPU")
    limit_process_wall_ms = Count(0, "from its start to its end")
    limit_process_cpu_ms = Count(0, "of CPU time")
    limit_process_file_bytes = Count(0, "of a file that it writes")
    limit_process_open_files = Count(0, "of each of its processes")
    limit_process_best = Count(0, "1: limits that the kernel does not hold here are held as far as possible")
    limit_session_memory_bytes = Count(0, "of all processes of a session together; --limit-session")
    limit_session_processes = Count(0, "of all processes of a session together")
    limit_session_cpu_percent = Count(0, "of all processes of a session together")

    # Ports
    forward_reach = Count(1, "port/open and port/listen: 0 nowhere, 1 loopback, 2 anywhere; --allow-forward")

    # Network proxies of processes
    egress_connections = Count(4096, "of all proxies, at most a sixth of the descriptors; others wait")
    proxy_private_ips_via_upstream = Count(
        0, "1: upstream proxies get private addresses, too; --proxy-private-ips-via-upstream"
    )
    policy_answer_grace_s = Seconds(5.0, "a client may answer network/policyRequest later than its own limit")

    # Files
    inline_file_bytes = Count(256 * _KIB, "read or written without a thread when the file system is local")
    file_call_timeout_s = Seconds(30.0, "a call on a network file system is given up")
    stuck_file_threads = Count(16, "threads that may hang in such calls before further ones are refused")
    device_write_timeout_s = Seconds(5.0, "a write to a character device is given up")

    # http/request
    max_redirects = Count(10, "followed for one http/request")

    def __init__(self, **overrides: float) -> None:
        kinds = dict(self.table())
        for name in overrides:
            if name not in kinds:
                raise SettingError(f"there is no setting {name}")
        for name, kind in kinds.items():
            try:
                value = kind.check(overrides[name]) if name in overrides else kind.default
            except SettingError as error:
                raise SettingError(f"setting {name}: {error}") from None
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"settings are read-only: {name}")

    @classmethod
    def table(cls) -> Iterator[tuple[str, Seconds | Count]]:
        """Yield every setting in the order of declaration."""
        for name, kind in vars(cls).items():
            if isinstance(kind, Seconds | Count):
                yield name, kind

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], **given: float) -> Settings:
        """Return the defaults, changed by what is given, and by EXECSERVER_SETTINGS if a test has set it."""
        text = environment.get(OVERRIDE_VARIABLE)
        if not text:
            return cls(**given)
        import json  # late: only tests come here

        try:
            overrides = json.loads(text)
        except ValueError as error:
            raise SettingError(f"{OVERRIDE_VARIABLE} is not JSON: {error}") from None
        if not isinstance(overrides, dict):
            raise SettingError(f"{OVERRIDE_VARIABLE} is not a JSON object")
        return cls(**given | overrides)
