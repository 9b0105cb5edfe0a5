"""`sync --watch`: after the first sync, another one whenever something has changed in the source.

The source is looked at as a whole each time, and compared with what the target is known to be; only after a
failure, and when events were lost, is the target looked at again.  What others change in the target meanwhile
is not noticed before.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from execserver.box.connecting import patience, unreachable
from execserver.box.shown import shown
from execserver.box.transfer.local_watch import LocalWatch
from execserver.box.transfer.syncing import EmptySource, Sync
from execserver.box.trees.native import native
from execserver.box.trees.nodes import Kind, Tree
from execserver.client.errors import UnsupportedByServer, WaitTimeout
from execserver.leaving import Leave, failure
from execserver.protocol.paths import PathUri

if TYPE_CHECKING:
    from execserver.box.connecting import Box
    from execserver.client.client import ExecServerClient
    from execserver.client.file_watches import FileWatch

_END_S: Final = 2.0
_QUIET_S: Final = 0.1  # so long nothing must have changed before the source is looked at,
_LONGEST_S: Final = 1.0  # but it is after this long in any case


class Watch(Protocol):
    """Tells that something in the source has changed."""

    def wait(self, seconds: float | None = None) -> bool | None:
        """Return whether changes were lost, once there are some; None after so many seconds without."""

    def close(self) -> None:
        """End it."""


class BoxWatch:
    """Watches a tree of a box, over lost connections."""

    def __init__(self, watch: FileWatch) -> None:
        self._watch = watch

    def wait(self, seconds: float | None = None) -> bool | None:
        """As `Watch.wait`.  Raises Leave when the box has ended the watch."""
        try:
            batch = self._watch.next_batch(seconds)
        except WaitTimeout:
            return None
        if batch is None or batch.ended:
            why = "" if batch is None else f": {shown(batch.reason or '', 300)}"
            raise failure(f"the source is watched no more{why}", "look at its path")
        return batch.overflow

    def close(self) -> None:
        """End the watch; it ends with the session, too, so a box that is silent is not waited for."""
        try:
            with patience(_END_S):
                self._watch.close()
        except WaitTimeout:
            pass


def follow(sync: Sync, client: ExecServerClient, box: Box) -> NoReturn:
    """Sync now and after every change.  Ends by an error, or a Leave: of a signal, if nothing goes wrong."""
    watch: Watch = _watched_here(sync) if sync.up else _watched_there(sync, client, box)
    try:
        _rounds(sync, watch)
    finally:
        watch.close()


def _rounds(sync: Sync, watch: Watch) -> NoReturn:
    target: Tree | None = None
    while True:
        if target is None:
            target, _ = sync.look(source=False)
        try:
            status, source = sync.become(target)
            target = None if status or sync.report.failed_names else sync.reached(target, source)
        except EmptySource as empty:
            sync.report.complain(empty.text, empty.cure)
        if _wait(watch):
            target = None


def _wait(watch: Watch) -> bool:
    """Wait for changes, and until they pause; return whether some were lost."""
    lost = watch.wait() is True
    until = time.monotonic() + _LONGEST_S
    while time.monotonic() < until:
        more = watch.wait(_QUIET_S)
        if more is None:
            break
        lost = lost or more
    return lost


def _watched_here(sync: Sync) -> LocalWatch:
    top = sync.look(source=True)[0].get(b"")
    if top is None or top.kind is not Kind.FOLDER:
        raise _no_folder()
    watch = LocalWatch(sync.here)
    sync.cover = watch.cover
    return watch


def _watched_there(sync: Sync, client: ExecServerClient, box: Box) -> BoxWatch:
    if not client.get_metadata(PathUri.from_native(sync.there)).is_directory:
        raise _no_folder()
    try:
        watch = client.files.watch(PathUri.from_native(sync.there))
    except UnsupportedByServer:
        raise unreachable(
            f"{shown(box.name, 200)}: this server does not watch folders", "use a newer execserver there"
        ) from None
    for each in watch.errors:
        sync.report.say(f"not watched: {shown(native(each.path), 300)}: {shown(each.message, 300)}")
    return BoxWatch(watch)


def _no_folder() -> Leave:
    return failure("the source is no folder", "--watch is for folders")
