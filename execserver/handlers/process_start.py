"""`process/start`: the checks in their order, the spec, the sandbox, and what a start may ask for besides.

What it may ask for (a network proxy, a shell snapshot, a recording) is in modules that are loaded with the
first such start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from execserver.core.env_policy import child_environment
from execserver.core.process_state import SandboxNote
from execserver.handlers.context import Call
from execserver.handlers.limits import UNRESTRICTED, limits
from execserver.handlers.registry import handles
from execserver.handlers.replies import Later, Reply
from execserver.protocol import templates
from execserver.protocol.errors import InvalidParams
from execserver.protocol.methods import PROCESS_START
from execserver.protocol.process import ExecParams, ExecResponse, ExecSandboxType, RecordedStreams
from execserver.protocol.resource_limits import ResourceLimits
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.sandbox.policy.request_check import check_process_cwd, process_request_needs_sandbox
from execserver.services.confinement.current_plan import SandboxNotMade, with_current_plan
from execserver.services.launch.child import Child
from execserver.services.launch.spawner import SpawnSpec
from execserver.services.running.process import Process
from execserver.services.running.process_table import ProcessTable
from execserver.zygote.confinement import FILTER, Confinement

if TYPE_CHECKING:
    from execserver.egress.masking import Masking

_SANDBOX_TYPES = {False: ExecSandboxType.NONE, True: ExecSandboxType.LINUX_SECCOMP}


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
    from execserver.services.launch.passed_listeners import PassedListeners

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
