"""What a client can ask about one process: each request, and what its answer means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from execserver.client.errors import UnsupportedByServer
from execserver.client.operations.call import Operation, ask
from execserver.client.rules import wire
from execserver.client.rules.event_log import ReadState
from execserver.client.rules.process_state import ProcessState
from execserver.protocol.environment import Extensions
from execserver.protocol.method import Method
from execserver.protocol.process import (
    CloseStdinParams,
    ExecParams,
    ReadParams,
    ResizeParams,
    TerminateParams,
)
from execserver.protocol.process_methods import (
    PROCESS_CLOSE_STDIN,
    PROCESS_READ,
    PROCESS_RESIZE,
    PROCESS_TERMINATE,
    PROCESS_WRITE,
)

if TYPE_CHECKING:
    from execserver.protocol.watching import LogResponse


def write(known: ProcessState, data: bytes) -> Operation[None]:
    """Write input, piece by piece.  Raises `StdinUnavailable`."""
    for params in known.writing(data):
        known.check_written((yield from ask(PROCESS_WRITE, params, resend=True)).status)


def close_stdin(known: ProcessState, extensions: Extensions) -> Operation[None]:
    """Close the input.  Raises `UnsupportedByServer` and `StdinUnavailable`."""
    require(extensions.process_close_stdin, PROCESS_CLOSE_STDIN)
    params = CloseStdinParams(process_id=known.process_id)
    known.check_closed((yield from ask(PROCESS_CLOSE_STDIN, params, resend=True)).status)


def resize(known: ProcessState, extensions: Extensions, rows: int, cols: int) -> Operation[None]:
    """Change the size of the terminal.  Raises `UnsupportedByServer`."""
    require(extensions.process_resize, PROCESS_RESIZE)
    yield from ask(PROCESS_RESIZE, ResizeParams(process_id=known.process_id, rows=rows, cols=cols))


def terminate(known: ProcessState) -> Operation[bool]:
    """Kill the process; return whether it was running."""
    return (yield from ask(PROCESS_TERMINATE, TerminateParams(process_id=known.process_id))).running


def kill(known: ProcessState) -> Operation[bool]:
    """Kill the process as soon as there is a connection; return whether it was running."""
    params = TerminateParams(process_id=known.process_id)
    return (yield from ask(PROCESS_TERMINATE, params, resend=True)).running


def read(
    known: ProcessState, extensions: Extensions, after_seq: int | None, max_bytes: int | None, wait: float
) -> Operation[ReadState]:
    """Return retained output after `after_seq`; None goes on where the last such read ended."""
    state = yield from _read(known.reading(after_seq, max_bytes, wait), extensions)
    if after_seq is None:
        known.has_read(state)
    return state


def catch_up(known: ProcessState, extensions: Extensions) -> Operation[None]:
    """Learn all that has come after the last known event, and what of it is lost."""
    known.settle((yield from _read(known.missed(), extensions)))


def sandbox_denied(known: ProcessState, extensions: Extensions) -> Operation[bool]:
    """Return whether the sandbox made an ended process fail; asks only if its exit did not say."""
    denied = known.known_denial()
    if denied is None:
        denied = known.denied = (yield from _read(known.missed(), extensions)).sandbox_denied
    return denied


def log(
    known: ProcessState,
    extensions: Extensions,
    *,
    after_seq: int | None,
    max_bytes: int | None,
    tail_bytes: int | None,
    since_ms: int | None,
) -> Operation[LogResponse]:
    """Return a page of all output that the server keeps.  Raises `UnsupportedByServer`."""
    from execserver.protocol.own_methods import PROCESS_LOG  # late, as below: few processes are watched
    from execserver.protocol.watching import LogParams

    require(extensions.process_log, PROCESS_LOG)
    params = LogParams(
        process_id=known.process_id,
        after_seq=after_seq,
        max_bytes=max_bytes,
        tail_bytes=tail_bytes,
        since_ms=since_ms,
    )
    return (yield from ask(PROCESS_LOG, params, resend=True))


def take(known: ProcessState) -> Operation[bool]:
    """Take the right to write; return whether this session has it now."""
    from execserver.protocol.own_methods import PROCESS_TAKE
    from execserver.protocol.watching import TakeParams

    return (yield from ask(PROCESS_TAKE, TakeParams(process_id=known.process_id))).writer


def unwatch(known: ProcessState) -> Operation[None]:
    """Follow a process of another session no longer."""
    from execserver.protocol.own_methods import PROCESS_UNWATCH
    from execserver.protocol.watching import UnwatchParams

    yield from ask(PROCESS_UNWATCH, UnwatchParams(process_id=known.process_id))


def require(offered: object, method: Method[Any, Any]) -> None:
    """Raise `UnsupportedByServer` unless the server announces a method."""
    if not offered:
        raise UnsupportedByServer(f"this server does not have {method.name}")


def require_members(extensions: Extensions, params: ExecParams) -> None:
    """Raise `UnsupportedByServer` for a member of a start that the server would not see."""
    if params.limits is not msgspec.UNSET and not extensions.process_limits:
        raise UnsupportedByServer("this server holds no process to limits")
    if params.record is not msgspec.UNSET and not extensions.process_recording:
        raise UnsupportedByServer(
            "this server records no process; its operator can have it do so with --audit"
        )


def _read(params: ReadParams, extensions: Extensions) -> Operation[ReadState]:
    return wire.decode_read((yield from ask(PROCESS_READ, params, resend=True)), extensions.output_gaps)
