"""`fs/watch`, `fs/watchResume` and `fs/unwatch` (wire contract, section 20)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from execserver.handlers.context import Call
from execserver.handlers.filesystem import operations
from execserver.handlers.registry import handles
from execserver.handlers.replies import Later, Reply
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.file_watches import (
    FsUnwatchParams,
    FsUnwatchResponse,
    FsWatchParams,
    FsWatchResumeParams,
    FsWatchResumeResponse,
)
from execserver.protocol.own_methods import FS_UNWATCH, FS_WATCH, FS_WATCH_RESUME

if TYPE_CHECKING:
    from execserver.services.file_watches.table import FileWatchTable


def _table(call: Call) -> FileWatchTable:
    return call.session.file_watches(call.services.watch_totals)


@handles(FS_WATCH)
def watch(call: Call, params: FsWatchParams) -> Later:
    """Watch a folder; answered when everything below it is watched."""
    files = operations(call, params.sandbox, params.path)
    table = _table(call)
    opening = table.opening(params.watch_id)

    def begin() -> Reply:
        path = params.path.native()
        if not files.get_metadata(path)[0]:
            raise InvalidRequest("fs/watch: this is no directory; watch the one that it is in")
        root = files.canonicalize(path)
        watch, found = table.open(opening, params, files, root, call.services.filesystem.is_local(root))
        return Reply(found, watch.start)

    return Later(begin)


@handles(FS_WATCH_RESUME)
def resume(call: Call, params: FsWatchResumeParams) -> Reply:
    """Go on with a watch after a lost connection, from where the client is."""
    watch = _table(call).known(params.watch_id)
    watch.check(params.after_seq)
    found = FsWatchResumeResponse(watch_id=params.watch_id, last_seq=watch.last_seq)
    return Reply(found, lambda: watch.resume(params.after_seq))


@handles(FS_UNWATCH)
def unwatch(call: Call, params: FsUnwatchParams) -> FsUnwatchResponse:
    """End a watch, open or being opened."""
    _table(call).close_one(params.watch_id)
    return FsUnwatchResponse()
