"""`process/watch`, `take`, `unwatch`, `log`: other sessions' processes, and all output (contract, 16)."""

from __future__ import annotations

from execserver.core.output_log import Chunk
from execserver.handlers.context import Call
from execserver.handlers.registry import handles
from execserver.handlers.replies import Later, Reply
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.own_methods import PROCESS_LOG, PROCESS_TAKE, PROCESS_UNWATCH, PROCESS_WATCH
from execserver.protocol.process import ExecOutputStream
from execserver.protocol.watching import (
    LogChunk,
    LogParams,
    LogResponse,
    TakeParams,
    TakeResponse,
    UnwatchParams,
    UnwatchResponse,
    WatchProcessParams,
    WatchProcessResponse,
)
from execserver.services.running.process import Process
from execserver.services.running.process_log import DEFAULT_PAGE, LARGEST_PAGE, LogPage, first_seq, page
from execserver.services.running.watching import take


@handles(PROCESS_WATCH)
def watch(call: Call, params: WatchProcessParams) -> Reply:
    """Follow a process; its notifications come after the answer."""
    process = _seen(call, params)
    table = call.session.processes
    followed = table.watch(process, params.watch_id, params.after_seq)
    if params.take:
        take(process, table.attachment)
    rows, cols = process.size or (None, None)
    state = process.state
    found = WatchProcessResponse(
        process_id=params.watch_id,
        argv=tuple(process.argv),
        tty=state.tty,
        rows=rows,
        cols=cols,
        running=not state.exited,
        exit_code=state.exit_code,
        next_seq=state.log.next_seq,
        writer=process.writer is table.attachment,
    )
    return Reply(found, followed.start)


def _seen(call: Call, params: WatchProcessParams) -> Process:
    """Return a process that this peer can see; others are unknown, whether they exist or not."""
    for session in call.services.sessions.kept.visible(call.session):
        if session.session_id == params.session_id:
            process = session.processes.own(params.process_id)
            if process is not None:
                return process
    raise InvalidRequest(f"unknown process id {params.process_id}")


@handles(PROCESS_LOG)
def log(call: Call, params: LogParams) -> LogResponse | Later:
    """Return a page of a process's log; only what is on disk has to be waited for."""
    process = call.session.processes.known(params.process_id)
    after_seq = first_seq(process, params.after_seq or 0, params.tail_bytes, params.since_ms)
    max_bytes = min(LARGEST_PAGE, DEFAULT_PAGE if params.max_bytes is None else max(1, params.max_bytes))

    def answer() -> LogResponse:
        return _log_response(process, page(process, after_seq, max_bytes))

    return answer() if process.spool is None else Later(answer, repeats=True)


def _log_response(process: Process, found: LogPage) -> LogResponse:
    state = process.state
    return LogResponse(
        chunks=tuple([_log_chunk(*each) for each in found.chunks]),
        next_seq=found.next_seq,
        oldest_seq=found.oldest_seq,
        lost_bytes=found.lost_bytes,
        exited=state.exited,
        exit_code=state.exit_code,
        closed=state.closed,
        spool_error=None if process.spool is None else process.spool.error,
    )


def _log_chunk(chunk: Chunk, at_ms: int) -> LogChunk:
    return LogChunk(seq=chunk.seq, stream=ExecOutputStream(chunk.stream), chunk=chunk.data, at_ms=at_ms)


@handles(PROCESS_UNWATCH)
def unwatch(call: Call, params: UnwatchParams) -> UnwatchResponse:
    """End a watch; the process is not touched."""
    call.services.sessions.kept.leaving(call.session)
    call.session.processes.unwatch(params.process_id)
    return UnwatchResponse()


@handles(PROCESS_TAKE)
def take_over(call: Call, params: TakeParams) -> TakeResponse:
    """Let this session write."""
    table = call.session.processes
    table.attachment.knows_watchers = True
    take(table.known(params.process_id), table.attachment)
    return TakeResponse(writer=True)
