"""What is asked about watched directories, as operations."""

from __future__ import annotations

from uuid import uuid4

from execserver.client.errors import ExecServerError, RequestFailed, TransportClosed, UnsupportedByServer
from execserver.client.operations.call import Operation, ask
from execserver.client.rules import wire
from execserver.client.rules.batch_log import BatchLog
from execserver.client.rules.wire import RemotePath, Sandbox
from execserver.protocol.environment import Extensions
from execserver.protocol.file_watches import (
    FsUnwatchParams,
    FsWatchParams,
    FsWatchResponse,
    FsWatchResumeParams,
)
from execserver.protocol.own_methods import FS_UNWATCH, FS_WATCH, FS_WATCH_RESUME


def require(extensions: Extensions) -> None:
    """Raise `UnsupportedByServer` where directories are not watched."""
    if not extensions.fs_watch:
        raise UnsupportedByServer("this server does not watch directories")


def watch_params(path: RemotePath, *, recursive: bool, coalesce: float, sandbox: Sandbox) -> FsWatchParams:
    """Return the params of a new watch; changes are collected for `coalesce` seconds."""
    return FsWatchParams(
        watch_id=uuid4().hex,
        path=wire.path_uri(path),
        recursive=recursive,
        coalesce_ms=round(coalesce * 1000),
        sandbox=wire.sandbox_context(sandbox),
    )


def watch(params: FsWatchParams) -> Operation[FsWatchResponse]:
    """Begin to watch a directory; the caller has called `require` before."""
    return (yield from ask(FS_WATCH, params))


def resume(watch_id: str, log: BatchLog) -> Operation[ExecServerError | None]:
    """Ask on a new connection for what has not arrived; return why the watch has ended, if it has."""
    try:
        yield from ask(FS_WATCH_RESUME, FsWatchResumeParams(watch_id=watch_id, after_seq=log.last_seq))
    except RequestFailed as error:
        return TransportClosed(f"the watch has ended meanwhile: {error}")
    except ExecServerError:
        pass  # the next connection tries again
    return None


def unwatch(watch_id: str) -> Operation[None]:
    """End a watch."""
    try:
        yield from ask(FS_UNWATCH, FsUnwatchParams(watch_id=watch_id), resend=True)
    except ExecServerError:
        pass  # it ends with the session
