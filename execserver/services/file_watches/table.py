"""The watched folders of one session by their ids, and what all sessions together may watch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from execserver.protocol.errors import InvalidParams, InvalidRequest
from execserver.protocol.file_watches import FsWatchParams, FsWatchResponse
from execserver.services.clients.attachment import Attachment
from execserver.services.file_watches.scan import WatchableFiles
from execserver.services.file_watches.telling import Telling
from execserver.services.file_watches.watch import FileWatch
from execserver.services.openings import Opening, Openings

if TYPE_CHECKING:
    from execserver.handover.records import PackedFileWatch

MAX_WATCHES: Final = 16  # of a session
MAX_SERVER_WATCHES: Final = 64  # a user has 128 inotify instances, as a rule
MAX_FOLDERS: Final = 32_768  # of a session; each holds about 2 KiB of the kernel's memory
MAX_SERVER_FOLDERS: Final = 65_536
_MAX_ID_BYTES = 64


class WatchTotals:
    """What all sessions of a server watch."""

    def __init__(self) -> None:
        self.watches = 0
        self.folders = 0


class FileWatchTable:
    """Opens and finds the watches of one session."""

    def __init__(self, totals: WatchTotals, attachment: Attachment) -> None:
        self._totals = totals
        self._attachment = attachment
        self._watches: dict[str, FileWatch] = {}
        self._openings = Openings("watch")
        self._folders = 0
        self._closed = False

    def opening(self, watch_id: str) -> Opening:
        """Reserve the id of a watch, for `open`; it can be closed from now on.  Raises RpcError."""
        self._check(watch_id)
        return self._openings.reserve(watch_id)

    def open(
        self, opening: Opening, params: FsWatchParams, files: WatchableFiles, root: bytes, local: bool
    ) -> tuple[FileWatch, FsWatchResponse]:
        """Watch a folder whose path has no symlinks; the caller starts the watch.

        Raises OSError and RpcError, also if it was closed meanwhile.
        """
        try:
            self._openings.check(opening)
            self._check_server()  # again: other sessions have gone on
            watch = self._made(params, Telling(params.path.native(), root, files.visible))
            try:
                folders, errors = watch.begin(files, root)
                self._openings.check(opening)
            except BaseException:
                if self._watches.get(watch.watch_id) is watch:  # not if it was closed meanwhile
                    self.close_one(watch.watch_id)
                raise
        finally:
            self._openings.release(opening)
        found = FsWatchResponse(watch_id=watch.watch_id, folders=folders, local=local, errors=errors)
        return watch, found

    def _made(self, params: FsWatchParams, telling: Telling) -> FileWatch:
        watch_id, coalesce_s = params.watch_id, params.coalesce_ms / 1000
        watch = FileWatch(watch_id, telling, self._attachment, self, coalesce_s, params.recursive)
        self._watches[watch_id] = watch
        self._totals.watches += 1
        return watch

    def known(self, watch_id: str) -> FileWatch:
        """Return a watch.  Raises InvalidRequest."""
        watch = self._watches.get(watch_id)
        if watch is None:
            raise InvalidRequest(f"unknown watch {watch_id}")
        return watch

    def close_one(self, watch_id: str) -> None:
        """End a watch, open or being opened, if there is one with this id."""
        self._openings.cancel(watch_id)
        watch = self._watches.pop(watch_id, None)
        if watch is not None:
            self._totals.watches -= 1
            watch.close()

    def close(self) -> None:
        """End everything: the session is over."""
        self._closed = True
        self._openings.cancel_all()
        for watch_id in list(self._watches):
            self.close_one(watch_id)

    def pack(self) -> list[PackedFileWatch]:
        """Return what `unpack` takes."""
        return [watch.pack() for watch in self._watches.values()]

    def unpack(self, packed: list[PackedFileWatch]) -> None:
        """Take over watches that have ended; their clients are told."""
        for each in packed:
            nothing = Telling(b"", b"", lambda paths: [False for _ in paths])
            watch = FileWatch(each.watch_id, nothing, self._attachment, self, 0.0, False)
            self._watches[each.watch_id] = watch
            self._totals.watches += 1
            watch.restore(each)

    # --- the budget of folders ---------------------------------------------------------------------------

    def take(self) -> str | None:
        """Count one more folder; return why that cannot be, or None."""
        if self._folders >= MAX_FOLDERS:
            return f"at most {MAX_FOLDERS} folders may be watched in a session: watch fewer of them"
        if self._totals.folders >= MAX_SERVER_FOLDERS:
            return f"at most {MAX_SERVER_FOLDERS} folders may be watched on this server: watch fewer of them"
        self._folders += 1
        self._totals.folders += 1
        return None

    def give(self, folders: int) -> None:
        """Count fewer folders."""
        self._folders -= folders
        self._totals.folders -= folders

    def _check(self, watch_id: str) -> None:
        if not 0 < len(watch_id.encode()) <= _MAX_ID_BYTES:
            raise InvalidParams(f"watchId must be 1 to {_MAX_ID_BYTES} bytes")
        if self._closed:
            raise InvalidRequest("the session has ended")
        if watch_id in self._watches or watch_id in self._openings:
            raise InvalidRequest(f"watch {watch_id} already exists")
        if self._number() >= MAX_WATCHES:
            self._forget_ended()
        if self._number() >= MAX_WATCHES:
            raise InvalidRequest(f"at most {MAX_WATCHES} watches may be open in a session: end one first")
        self._check_server()

    def _number(self) -> int:
        """Return how many watches there are, with those being opened, which may be among both."""
        return len(self._watches) + sum(key not in self._watches for key in self._openings)

    def _check_server(self) -> None:
        if self._totals.watches >= MAX_SERVER_WATCHES:
            raise InvalidRequest(f"at most {MAX_SERVER_WATCHES} watches may be open on this server")

    def _forget_ended(self) -> None:
        for watch_id in [each for each, watch in self._watches.items() if watch.ended]:
            self.close_one(watch_id)
