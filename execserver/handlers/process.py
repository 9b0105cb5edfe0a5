"""`process/*` (wire contract, section 8, and the extensions of docs/protocol.md)."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Raw
from msgspec.structs import replace

from execserver.access.identity import NOBODY
from execserver.core.env_policy import child_environment
from execserver.core.process_state import SandboxNote
from execserver.handlers.context import Call
from execserver.handlers.limits import UNRESTRICTED, limits
from execserver.handlers.registry import handles
from execserver.handlers.replies import Later, Reply
from execserver.protocol import templates
from execserver.protocol.errors import InternalError, InvalidParams, InvalidRequest, os_error_text
from execserver.protocol.methods import (
    PROCESS_CLOSE_STDIN,
    PROCESS_LIST,
    PROCESS_READ,
    PROCESS_RESIZE,
    PROCESS_SIGNAL,
    PROCESS_START,
    PROCESS_TERMINATE,
    PROCESS_WRITE,
)
from execserver.protocol.process import (
    CloseStdinParams,
    CloseStdinResponse,
    ExecParams,
    ExecResponse,
    ExecSandboxType,
    ProcessListResponse,
    ProcessSignal,
    ReadParams,
    RecordedStreams,
    ResizeParams,
    ResizeResponse,
    SessionIdentity,
    SignalParams,
    SignalResponse,
    TerminateParams,
    TerminateResponse,
    WriteParams,
    WriteResponse,
    WriteStatus,
)
from execserver.protocol.record import encode_record
from execserver.protocol.resource_limits import ResourceLimits
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.protocol.session import NoParams
from execserver.sandbox.policy.request_check import check_process_cwd, process_request_needs_sandbox
from execserver.services.child import Child
from execserver.services.current_plan import SandboxNotMade, with_current_plan
from execserver.services.process import Process
from execserver.services.process_list import list_entry
from execserver.services.process_table import ProcessTable
from execserver.services.spawner import SpawnSpec
from execserver.zygote.confinement import FILTER, Confinement

if TYPE_CHECKING:
    from execserver.core.process_state import WriteMemory
    from execserver.egress.masking import Masking
    from execserver.services.stdin_queue import StdinQueue

_SANDBOX_TYPES = {False: ExecSandboxType.NONE, True: ExecSandboxType.LINUX_SECCOMP}
_NOT_WRITTEN = "failed to write to process stdin"
_ACCEPTED = Raw(encode_record(WriteResponse(status=WriteStatus.ACCEPTED)))  # each key is answered with it
_SIGNALS = {
    ProcessSignal.INTERRUPT: signal.SIGINT,
    ProcessSignal.HUP: signal.SIGHUP,
    ProcessSignal.INT: signal.SIGINT,
    ProcessSignal.QUIT: signal.SIGQUIT,
    ProcessSignal.TERM: signal.SIGTERM,
    ProcessSignal.KILL: signal.SIGKILL,
    ProcessSignal.USR1: signal.SIGUSR1,
    ProcessSignal.USR2: signal.SIGUSR2,
    ProcessSignal.CONT: signal.SIGCONT,
    ProcessSignal.STOP: signal.SIGSTOP,
    ProcessSignal.WINCH: signal.SIGWINCH,
}


@handles(PROCESS_START)
def start(call: Call, params: ExecParams) -> Reply | Later:
    """Run a program; its notifications follow the answer."""
    cwd = check_start(params)
    if params.network_proxy is None and call.services.network_rules is None:
        return _start_in(cwd, call, params)
    from execserver.handlers.network import start_with_proxy

    return start_with_proxy(call, params, partial(_start_in, cwd, call))


def _start_in(
    cwd: bytes, call: Call, params: ExecParams, listeners_fd: int = -1, masking: Masking | None = None
) -> Reply | Later:
    spec = SpawnSpec(
        argv=[word.encode() for word in params.argv],
        env=child_environment(call.services.inherited, params.env_policy, params.env),
        cwd=cwd,
        arg0=None if params.arg0 is None else params.arg0.encode(),
        tty=params.tty,
        pipe_stdin=params.pipe_stdin,
        listeners_fd=listeners_fd,
    )
    if masking is not None:
        from execserver.handlers.network import masked

        spec = masked(spec, masking)
        # What lists, logs and records processes gets the words that the process has.
        params = replace(params, argv=tuple([word.decode() for word in spec.argv]))
    if params.shell_snapshot is None:
        return _started(call, params, spec)
    from execserver.handlers.shell_snapshots import start_with_snapshot, with_snapshot

    return start_with_snapshot(
        call,
        params,
        lambda snapshot: _started(call, *with_snapshot(call, params, spec, snapshot, masking)),
        lambda argv: _start_capture(call, params, spec, argv),
    )


def _start_capture(call: Call, params: ExecParams, spec: SpawnSpec, argv: list[str]) -> Child:
    """Start another command as this one would be started, without input, on pipes."""
    table = call.session.processes
    words = [word.encode() for word in argv]
    other = spec._replace(argv=words, arg0=None, tty=False, pipe_stdin=False)
    if not _is_sandboxed(call, params):
        return table.spawn(other)
    plan = _planner(call, params, spec.cwd)
    if spec.listeners_fd < 0:
        return with_current_plan(plan(), plan, lambda confinement: table.spawn(_confined(other, confinement)))
    from execserver.services.passed_listeners import PassedListeners

    # It gets sockets of its own, which are dropped: start-up files have no network.  Without them a bridge
    # would lead to whoever listens at the same port outside.
    with closing(PassedListeners()) as passed:
        other = other._replace(listeners_fd=passed.fd)
        return with_current_plan(plan(), plan, lambda confinement: table.spawn(_confined(other, confinement)))


def _is_sandboxed(call: Call, params: ExecParams) -> bool:
    return params.sandbox is not None or limits(call) is not None


def _planner(call: Call, params: ExecParams, cwd: bytes) -> Callable[[], Confinement]:
    # Without what a shell snapshot exports: start-up files must not name the temporary folder of the policy.
    env = child_environment(call.services.inherited, params.env_policy, params.env)
    if params.sandbox is None:
        return planner(call, UNRESTRICTED, cwd, env)
    return planner(call, params.sandbox, cwd, env, params.enforce_managed_network, params.masks_credentials)


def _started(call: Call, params: ExecParams, spec: SpawnSpec) -> Reply:
    """Start a process, under its name if it gets one."""
    name = params.process_name
    if not isinstance(name, str):
        return _start_plainly(call, params, spec)[0]
    release = call.services.sessions.kept.reserve_process_name(call.session, name)
    try:
        reply, process = _start_plainly(call, params, spec)
        process.name = name
    finally:
        release()
    return reply


def _start_plainly(call: Call, params: ExecParams, spec: SpawnSpec) -> tuple[Reply, Process]:
    sandboxed = _is_sandboxed(call, params)
    if isinstance(params.record, RecordedStreams):
        from execserver.handlers import recording

        process = recording.started(call, params, lambda: _process(call, params, spec, sandboxed))
    else:
        process = _process(call, params, spec, sandboxed)
    answer = ExecResponse(process_id=params.process_id, sandbox_type=_SANDBOX_TYPES[sandboxed])
    if process.account is not None and process.account.enforced is not None:
        answer = replace(answer, enforced=process.account.enforced)
    return Reply(answer, process.begin), process


def _process(call: Call, params: ExecParams, spec: SpawnSpec, sandboxed: bool) -> Process:
    table = call.session.processes
    if not sandboxed:
        table.check_free(params.process_id)
        return _start(table, params, spec)
    planned = _planner(call, params, spec.cwd)
    return start_confined(spec, planned, lambda confined, note: _start(table, params, confined, note))


def _start(
    table: ProcessTable, params: ExecParams, spec: SpawnSpec, sandbox: SandboxNote | None = None
) -> Process:
    wording = templates.ProcessTemplates(params.process_id)
    asked = params.limits if isinstance(params.limits, ResourceLimits) else None
    return table.start(params.process_id, list(params.argv), spec, wording, sandbox, asked)


def planner(
    call: Call,
    context: FileSystemSandboxContext,
    cwd: bytes,
    env: Mapping[bytes, bytes],
    is_managed: bool = False,
    masks: bool = False,
) -> Callable[[], Confinement]:
    """Return what plans the sandbox of a context, with the limits of the client laid over it."""
    return partial(call.services.sandbox.process_start, context, cwd, is_managed, env, limits(call), masks)


def start_confined(
    spec: SpawnSpec, plan: Callable[[], Confinement], begin: Callable[[SpawnSpec, SandboxNote], Process]
) -> Process:
    """Have a process begun in the sandbox that was planned."""

    def start_within(confinement: Confinement) -> Process:
        note = SandboxNote(confinement.has_own_init, confinement.refusal)
        return begin(_confined(spec, confinement), note)

    try:
        return with_current_plan(plan(), plan, start_within)
    except SandboxNotMade as failed:
        raise InvalidParams(f"failed to prepare process sandbox: {failed}") from None


def _confined(spec: SpawnSpec, confinement: Confinement) -> SpawnSpec:
    """Add a confinement to a start; `arg0` never becomes the program, unlike on an unsandboxed terminal."""
    # A plain start on a terminal runs `arg0` in place of the program, as the reference server does.
    plain = not confinement.plan and confinement.kind != FILTER
    return spec._replace(confinement=confinement, arg0=None if plain and spec.tty else spec.arg0)


def check_start(params: ExecParams) -> bytes:
    """Make the checks of sections 8.1 and 8.7 in their order; return the directory to start in."""
    # With a sandbox the context comes first and the directory last, without one the directory first.
    if params.sandbox is None:
        cwd = check_process_cwd(params.cwd, sandboxed=False)
        _check_argv(params)
        return cwd
    process_request_needs_sandbox(params.sandbox, params.enforce_managed_network)
    _check_argv(params)
    return check_process_cwd(params.cwd, sandboxed=True)


def _check_argv(params: ExecParams) -> None:
    if not params.argv:
        raise InvalidParams("argv must not be empty")


@handles(PROCESS_READ, waits=False)
def read(call: Call, params: ReadParams) -> Raw | Later:
    """Return retained output, at once or as soon as there is some."""
    process = call.session.processes.known(params.process_id)
    after_seq = params.after_seq or 0
    wait_ms = params.wait_ms or 0
    if not wait_ms or process.state.answers_read(after_seq):
        return _page(process, after_seq, params.max_bytes)

    ends_at = time.monotonic() + wait_ms / 1000

    def wait() -> Raw:
        process.wait_for_news(after_seq, wait_ms / 1000)
        return _page(process, after_seq, params.max_bytes)

    def rest() -> ReadParams:
        return replace(params, wait_ms=max(1, int((ends_at - time.monotonic()) * 1000)))

    return Later(wait, rest=rest)


@handles(PROCESS_WRITE, waits=False)
def write(call: Call, params: WriteParams) -> Raw | WriteResponse | Reply | Later:
    """Queue bytes for the input of a process, once per write id."""
    if params.write_id == "":
        raise InvalidParams("writeId must not be empty")
    table = call.session.processes
    process = table.find(params.process_id)
    if process is None:
        starting = table.is_starting(params.process_id)
        return WriteResponse(status=WriteStatus.STARTING if starting else WriteStatus.UNKNOWN_PROCESS)
    stdin, writes = process.stdin, process.state.writes
    write_id = params.write_id
    if write_id is not None and process.owner is not table.attachment:
        write_id = f"{call.session.session_id} {write_id}"  # clients of two sessions may use the same ids
    # Before the state of the input: a repeated write was accepted, even if the input has ended since.
    if write_id in writes:
        return _ACCEPTED
    table.writable(process, params.process_id)
    if stdin is None or process.stdin_closed:
        return WriteResponse(status=WriteStatus.STDIN_CLOSED)

    if process.state.terminated:
        raise InternalError(_NOT_WRITTEN)
    if not stdin.has_room:
        stdin.expect()
        return Later(partial(_put_in_turn, process, stdin, params.chunk, write_id), repeats=True)
    if not stdin.goes_straight:
        return _put(process, stdin, params.chunk, write_id)
    # Answered first: that wakes the client's processor, which the kernel may use for a terminal's bytes.
    return Reply(_ACCEPTED, partial(_put_at_once, stdin, writes, params.chunk, write_id), leaves_first=True)


def _put_at_once(stdin: StdinQueue, writes: WriteMemory, data: bytes, write_id: str | None) -> None:
    stdin.put_at_once(data)
    writes.add(write_id)


def _put_in_turn(
    process: Process, stdin: StdinQueue, data: bytes, write_id: str | None
) -> Raw | WriteResponse:
    stdin.arrived()
    # What came before the end of the input has its turn by then, so this came behind it.
    if process.stdin_closed and write_id not in process.state.writes:
        return WriteResponse(status=WriteStatus.STDIN_CLOSED)
    return _put(process, stdin, data, write_id)


def _put(process: Process, stdin: StdinQueue, data: bytes, write_id: str | None) -> Raw:
    state, writes = process.state, process.state.writes
    # Asked again after the wait: the same write may have come twice, and both have waited for room.
    written = not state.terminated and stdin.put(data, lambda: write_id not in writes, write_id)
    if state.terminated and not written and write_id not in writes:
        raise InternalError(_NOT_WRITTEN)
    # Only now: if the client left during the wait, the repeat of this write must be written.
    writes.add(write_id)
    return _ACCEPTED


@handles(PROCESS_SIGNAL)
def send_signal(call: Call, params: SignalParams) -> SignalResponse:
    """Send a signal to the group of a process; do nothing if it is unknown or has exited."""
    process = call.session.processes.find(params.process_id)
    if process is not None:
        try:
            process.signal(_SIGNALS[params.signal])
        except OSError as error:
            raise InternalError(f"failed to signal process: {os_error_text(error.errno or 0)}") from error
    return SignalResponse()


@handles(PROCESS_TERMINATE)
def terminate(call: Call, params: TerminateParams) -> TerminateResponse:
    """Kill the process group of a process."""
    process = call.session.processes.find(params.process_id)
    return TerminateResponse(running=process is not None and process.terminate())


@handles(PROCESS_RESIZE, waits=False)
def resize(call: Call, params: ResizeParams) -> ResizeResponse:
    """Change the size of a terminal."""
    if not params.rows or not params.cols:
        raise InvalidParams("rows and cols must not be 0")
    table = call.session.processes
    process = table.known(params.process_id)
    table.writable(process, params.process_id)
    if not process.resize(params.rows, params.cols):
        raise InvalidRequest(f"process {params.process_id} has no terminal")
    return ResizeResponse()


@handles(PROCESS_CLOSE_STDIN, waits=False)
def close_stdin(call: Call, params: CloseStdinParams) -> CloseStdinResponse | Later:
    """End the input of a process behind what is queued for it."""
    table = call.session.processes
    process = table.find(params.process_id)
    if process is None:
        starting = table.is_starting(params.process_id)
        return CloseStdinResponse(status=WriteStatus.STARTING if starting else WriteStatus.UNKNOWN_PROCESS)
    table.writable(process, params.process_id)
    if process.stdin is None or process.stdin_closed:
        return CloseStdinResponse(status=WriteStatus.STDIN_CLOSED)

    def close() -> CloseStdinResponse:
        process.close_stdin()
        return CloseStdinResponse(status=WriteStatus.ACCEPTED)

    # Behind the writes that wait for room or will.  On a terminal the end is one more write.
    return close() if process.stdin.has_room else Later(close, repeats=True)


@handles(PROCESS_LIST)
def list_processes(call: Call, params: NoParams) -> ProcessListResponse:
    """List the processes of the session."""
    entries = [list_entry(process_id, process) for process_id, process in call.session.processes]
    opened_by = call.session.identity
    identity = None if opened_by == NOBODY else SessionIdentity(way=opened_by.way, name=opened_by.name)
    return ProcessListResponse(processes=tuple(entries), identity=identity)


def _page(process: Process, after_seq: int, max_bytes: int | None) -> Raw:
    return templates.read_result(process.page(after_seq, max_bytes), process.state)
