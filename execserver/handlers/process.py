"""`process/*` but the start (wire contract, section 8, and the extensions of docs/protocol.md)."""

from __future__ import annotations

import signal
import time
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Raw
from msgspec.structs import replace

from execserver.access.identity import NOBODY
from execserver.handlers.context import Call
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
    PROCESS_TERMINATE,
    PROCESS_WRITE,
)
from execserver.protocol.process import (
    CloseStdinParams,
    CloseStdinResponse,
    ProcessListResponse,
    ProcessSignal,
    ReadParams,
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
from execserver.protocol.session import NoParams
from execserver.services.running.process import Process
from execserver.services.sessions.process_list import list_entry

if TYPE_CHECKING:
    from execserver.core.process_state import WriteMemory
    from execserver.services.running.stdin_queue import StdinQueue

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
