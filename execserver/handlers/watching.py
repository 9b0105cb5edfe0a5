"""`process/watch`, `take` and `unwatch`: processes of other sessions of the same peer (wire contract, 16)."""

from __future__ import annotations

from execserver.handlers.context import Call
from execserver.handlers.registry import handles
from execserver.handlers.replies import Reply
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.own_methods import PROCESS_TAKE, PROCESS_UNWATCH, PROCESS_WATCH
from execserver.protocol.watching import (
    TakeParams,
    TakeResponse,
    UnwatchParams,
    UnwatchResponse,
    WatchProcessParams,
    WatchProcessResponse,
)
from execserver.services.process import Process
from execserver.services.watching import take


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


@handles(PROCESS_UNWATCH)
def unwatch(call: Call, params: UnwatchParams) -> UnwatchResponse:
    """End a watch; the process is not touched."""
    call.session.processes.unwatch(params.process_id)
    return UnwatchResponse()


@handles(PROCESS_TAKE)
def take_over(call: Call, params: TakeParams) -> TakeResponse:
    """Let this session write."""
    table = call.session.processes
    table.attachment.knows_watchers = True
    take(table.known(params.process_id), table.attachment)
    return TakeResponse(writer=True)
