"""`command/exec*`: the process methods of the first contract (wire contract, section 15)."""

from __future__ import annotations

from execserver.core.process_state import SandboxNote
from execserver.handlers.context import Call
from execserver.handlers.limits import UNRESTRICTED, limits
from execserver.handlers.process_start import planner, start_confined
from execserver.handlers.registry import handles
from execserver.handlers.replies import Later, Reply
from execserver.protocol.errors import InvalidParams, InvalidRequest
from execserver.protocol.legacy import (
    CommandExecParams,
    CommandExecResponse,
    CommandExecTerminateParams,
    CommandExecTerminateResponse,
    CommandExecWriteParams,
    CommandExecWriteResponse,
)
from execserver.protocol.methods import COMMAND_EXEC, COMMAND_EXEC_TERMINATE, COMMAND_EXEC_WRITE
from execserver.protocol.templates import CappedTemplates, CommandExecTemplates
from execserver.services.launch.spawner import SpawnSpec
from execserver.services.running.process import Process


@handles(COMMAND_EXEC)
def command_exec(call: Call, params: CommandExecParams) -> Reply:
    """Run a program; in that contract only a terminal takes input."""
    if not params.argv:
        raise InvalidParams("argv must not be empty")
    if call.services.network_rules is not None:
        raise InvalidRequest("this server has network rules, and `command/exec` cannot be kept to them")
    table = call.session.processes
    env = {name.encode(): value.encode() for name, value in params.env.items()}
    spec = SpawnSpec(
        argv=[word.encode() for word in params.argv],
        env=env,
        cwd=params.cwd.native(),
        arg0=None if params.arg0 is None else params.arg0.encode(),
        tty=params.tty,
    )
    cap = params.output_bytes_cap
    name = params.process_id
    wording = CommandExecTemplates(name) if cap is None else CappedTemplates(name, _each(cap))

    def begin(confined: SpawnSpec, note: SandboxNote | None = None) -> Process:
        return table.start(name, list(params.argv), confined, wording, note)

    # That contract has no sandbox context; a client with limits has them here, too.
    if limits(call) is None:
        process = begin(spec)
    else:
        process = start_confined(spec, planner(call, UNRESTRICTED, spec.cwd, env), begin)
    return Reply(CommandExecResponse(process_id=name, running=True), process.begin)


@handles(COMMAND_EXEC_WRITE)
def command_exec_write(call: Call, params: CommandExecWriteParams) -> CommandExecWriteResponse | Later:
    """Queue bytes for the input of a terminal; other processes have none in that contract."""
    table = call.session.processes
    process = table.known(params.process_id)
    table.writable(process, params.process_id)
    stdin = process.stdin
    # That contract has no status for it: input that cannot be written is an error.
    closed = InvalidRequest(f"stdin is closed for process {params.process_id}")
    if stdin is None or process.stdin_closed or process.state.exited:
        raise closed

    def put() -> CommandExecWriteResponse:
        if not stdin.put(params.chunk):
            raise closed
        return CommandExecWriteResponse(accepted=True)

    def wait() -> CommandExecWriteResponse:
        stdin.arrived()
        return put()

    if stdin.has_room:
        return put()
    stdin.expect()
    return Later(wait, repeats=True)


@handles(COMMAND_EXEC_TERMINATE)
def command_exec_terminate(call: Call, params: CommandExecTerminateParams) -> CommandExecTerminateResponse:
    """Kill the group of a process."""
    process = call.session.processes.find(params.process_id)
    return CommandExecTerminateResponse(running=process is not None and process.terminate())


def _each(cap: int) -> dict[str, int]:
    return dict.fromkeys(("stdout", "stderr", "pty"), cap)
