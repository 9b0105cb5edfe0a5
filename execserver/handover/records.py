"""What a server hands over to its successor in the same process, as records.

Each owner of state makes its own record with `pack` and is made anew from it with `unpack`.  A descriptor is
its number, which an exec leaves as it is; times are those of the kernel's monotonic clock.

Both programs must mean the same by it: whoever changes a record, or what one of its members means, counts
`STATE_VERSION` up.  A program is asked for the version before anything happens.  The records that go between
server and zygote about children (`SignalRequest`, `Signalled`, `Exited`, `Release`) belong to it: an old
zygote keeps its children.
"""

from __future__ import annotations

from typing import Final

import msgspec

STATE_VERSION: Final = 7


class PackedLog(msgspec.Struct, array_like=True, frozen=True):
    """`core.output_log.OutputLog`.

    What the chunks hold lies beside the records, one behind the other from `at` on.  `seqs`, `sizes` and
    `times` have eight bytes for each chunk, `streams` one, which is a place in `names`.
    """

    at: int
    seqs: bytes
    sizes: bytes
    times: bytes
    streams: bytes
    names: list[str]
    next_seq: int
    oldest_seq: int
    lost_bytes: int


class PackedState(msgspec.Struct, array_like=True, frozen=True):
    """`core.process_state.ProcessState`; `sandbox` is None or `own_init` and `refusal`."""

    tty: bool
    phase: str
    exit_code: int | None
    exit_seq: int
    terminated: bool
    sandbox: tuple[bool, str] | None
    sandbox_denied: bool
    end_text: bytes
    write_ids: list[str]
    log: PackedLog


class PackedSpool(msgspec.Struct, array_like=True, frozen=True):
    """`services.running.spool.Spool`; `fd` is -1 before anything was written."""

    fd: int
    file_size: int
    error: str | None
    pending: list[tuple[int, str, bytes, int]]
    place: int
    segments: list[tuple[int, int, int, int, int, int]]


class PackedInput(msgspec.Struct, array_like=True, frozen=True):
    """`services.running.stdin_queue.StdinQueue`; `fd` is -1 when it is gone."""

    fd: int
    queue: list[bytes]
    finishing: bool


class PackedNetwork(msgspec.Struct, array_like=True, frozen=True):
    """`services.egress.proxy.EgressProxy`: the JSON of its settings, and its listening sockets.

    Its connections end.  `masked` has the credentials of the process, empty where they are not masked.
    """

    launch: bytes
    is_on_host: bool
    http_port: int
    socks_port: int | None
    sockets: list[int]
    masked: bytes = b""


class PackedAccount(msgspec.Struct, array_like=True, frozen=True):
    """`services.resources.account.Account`: of whom, by zygote and id of its child; its control group's path.

    `watched` is the measurement that ended it: limit, value, processes.  `known` is what its process tree has
    seen, by pid and start time.
    """

    zygote: int
    child_id: int
    pid: int
    limits: dict[str, int]
    is_best: bool
    group: str | None
    enforced: dict[str, str] | None
    sampled: list[str]
    deadline: float
    watched: tuple[str, int, int] | None
    peak: int
    ooms_before: tuple[int, int]
    known: dict[int, int]
    has_exited: bool


class PackedLimits(msgspec.Struct, array_like=True, frozen=True):
    """`services.resources.limiting.SessionLimits`: its control group, processes so far, their accounts."""

    group: str | None
    started: int
    accounts: list[PackedAccount]


class PackedRecording(msgspec.Struct, array_like=True, frozen=True):
    """`audit.recording.Recording`, and whether input goes into it."""

    fd: int
    path: str
    at_us: int
    size: int
    is_cut: bool
    with_input: bool


class PackedProcess(msgspec.Struct, array_like=True, frozen=True):
    """`services.running.process.Process`.

    `zygote` and `child_id` find its child; `wait_status` is what that has said of its end, and `used` of its
    CPU time (us) and its memory.  `sent` are signals of clients, `ending` is why it ended and what it used,
    as JSON.  `writer` is the session that may write.  `caps` is what is left of each stream in the first
    contract, None in all others.
    """

    process_id: str
    name: str | None
    argv: list[str]
    pid: int
    started_at: float
    zygote: int
    child_id: int
    wait_status: int | None
    survivors: bool
    is_lost: bool
    used: tuple[int, int]
    sent: list[int]
    ending: bytes | None
    input_ended: bool
    wording: str
    caps: dict[str, int] | None
    writer: str
    input: PackedInput | None
    outputs: list[tuple[str, int]]
    spool: PackedSpool | None
    network: PackedNetwork | None
    recording: PackedRecording | None
    state: PackedState


class PackedWatch(msgspec.Struct, array_like=True, frozen=True):
    """`services.running.watching.Watch`: which process it follows, and how far it has come."""

    watch_id: str
    session_id: str
    process_id: str
    seq: int
    bytes: int | None
    finished: bool


class PackedPort(msgspec.Struct, array_like=True, frozen=True):
    """`services.ports.stream.PortStream`; `fd` is -1 when it is over."""

    port_id: str
    fd: int
    listen_id: str | None
    address: tuple[str, int]
    window_bytes: int
    sent: int
    received: int
    acknowledged: int
    queued: int
    kept: list[bytes]
    queue: list[bytes]
    eof_from_client: bool
    eof_written: bool
    eof_from_socket: bool
    failure: str | None
    in_binary: bool


class PackedPorts(msgspec.Struct, array_like=True, frozen=True):
    """`services.ports.table.PortTable`; a listener is id, descriptor, form, how many it accepted."""

    streams: list[PackedPort]
    listeners: list[tuple[str, int, bool, int]]


class PackedFileWatch(msgspec.Struct, array_like=True, frozen=True):
    """`services.file_watches.watch.FileWatch`, which ends with the handover; `kept` has its last batch."""

    watch_id: str
    last_seq: int
    kept: list[bytes]
    untold: bool


class PackedIdentity(msgspec.Struct, array_like=True, frozen=True):
    """`access.identity.Identity`; of the holder of a token also id and caveats, from which it can be made."""

    way: str
    name: str
    grant: tuple[list[str] | None, bool, bool] | None
    token: tuple[str, list[str]] | None


class PackedSession(msgspec.Struct, array_like=True, frozen=True):
    """`services.sessions.host.Session` with its processes; `closed` has those that are kept, oldest first."""

    session_id: str
    is_attached: bool
    keep_s: float | None
    expires_at: float
    is_kept: bool
    has_spools: bool
    closed: list[str] | None
    knows_watchers: bool
    identity: PackedIdentity
    name: str | None
    client_name: str
    created_at: float
    processes: list[PackedProcess]
    limits: PackedLimits | None
    watches: list[PackedWatch]
    ports: PackedPorts | None
    file_watches: list[PackedFileWatch]


class PackedSessions(msgspec.Struct, array_like=True, frozen=True):
    """`services.sessions.host.SessionHost`: sessions, and closed processes with the times to forget them.

    `limited` is how many sessions had a control group.
    """

    sessions: list[PackedSession]
    retention: list[tuple[str, str, float]]
    expiry: list[tuple[str, float]]
    limited: int


class PackedFrames(msgspec.Struct, array_like=True, frozen=True):
    """`wire.websocket.ServerFrames`.

    `begun` is the beginning of a frame whose length is not known; `head` that of one of which `owed` bytes
    are still to come: what is there of its header, and with all `head_size` bytes its `payload` so far.
    """

    begun: bytes
    head: bytes
    head_size: int
    payload: bytes
    owed: int
    parts: list[bytes]
    fragments: int
    is_text: bool


class PackedConnection(msgspec.Struct, array_like=True, frozen=True):
    """A client: its descriptor, what it has sent and what it has not got, and what belongs to it.

    `messages` are to be handled, oldest first; among them are requests that wait, in a form that asks for the
    rest of the wait.  A handle is its id, its descriptor, its mode, and whether the file is local.  Of
    questions to the client there are the last id, and those whose answers come too late.
    """

    fd: int
    peer: str
    is_tcp: bool
    frames: PackedFrames
    unsent: list[bytes]
    messages: list[bytes]
    phase: str
    client_name: str
    session_id: str
    identity: PackedIdentity
    handles: list[tuple[str, int, str, bool]]
    missing: tuple[int, int | None] | None
    questions: tuple[int, list[int]]


class PackedListener(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A listening socket, the file it is bound to (path, device, inode), and all that came by it.

    `silent` are those that have not sent anything.
    """

    fd: int
    file: tuple[str, int, int] | None
    connections: list[PackedConnection]
    silent: list[int]


class PackedSignIn(msgspec.Struct, array_like=True, frozen=True):
    """`remote.auth.kinds.Auth`: its kind, and the texts from which it is made anew, secrets among them."""

    kind: str
    texts: list[str]


class PackedInputCredential(msgspec.Struct, array_like=True, frozen=True):
    """`remote.auth.stdin_credentials.StdinCredential`: an unfinished line, and what came before it."""

    held: bytes
    token: str
    expires_at: int


class PackedRegistered(msgspec.Struct, array_like=True, frozen=True):
    """`remote.registering.Registered`: how it signs in, unless by stdin, and what the registry has answered.

    That is the environment's id, the URL and the registration's id.  The secret keys lie beside the records
    from `keys_at` on.
    """

    sign_in: PackedSignIn | None
    registration: tuple[str, str, str]
    keys_at: int


class PackedRemote(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Remote mode without its WebSocket, which is opened anew.

    `variables` are the credentials of the environment.  `registered` is None before the first registration.
    `streams` are the ids of those that end.
    """

    variables: dict[str, str]
    stdin: PackedInputCredential | None
    registered: PackedRegistered | None
    streams: list[str]


class PackedLink(msgspec.Struct, array_like=True, frozen=True):
    """`services.launch.zygote_link.ZygoteLink`; a child is its id, its pid, and whether it has a terminal."""

    pid: int
    fd: int
    next_id: int
    children: list[tuple[int, int, bool]]


class PackedSpawner(msgspec.Struct, array_like=True, frozen=True):
    """`services.launch.spawner.Spawner`: zygotes with children, pids of ended ones, their programs' locks."""

    links: list[PackedLink]
    ending: list[int]
    locks: list[int]


class Handover(msgspec.Struct, array_like=True, frozen=True):
    """All of it.

    Clients come by a listener, or by remote mode.  `began_at` is when the server began to hold requests back;
    `asker` the socket of who asked for the upgrade; `signals` a pipe with those that came since; `program`
    the file of the new program.
    """

    version: int
    from_version: str
    began_at: float
    front: PackedListener | PackedRemote
    spawner: PackedSpawner
    sessions: PackedSessions
    metrics: int | None
    asker: int | None
    signals: int
    program: int
