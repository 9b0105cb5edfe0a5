"""How a watch tells its client: paths as the client named the root, and only what its sandbox may read."""

from __future__ import annotations

from collections.abc import Callable

from execserver.core.pending_changes import CREATED, REMOVED, RENAMED, Change
from execserver.protocol.file_watches import FsChange, FsChangeKind
from execserver.protocol.files import FsWalkError
from execserver.protocol.paths import PathUri

Visible = Callable[[list[bytes]], list[bool]]


class Telling:
    """`shown` is the root as the client named it, `root` where it is; `visible` judges real paths."""

    def __init__(self, shown: bytes, root: bytes, visible: Visible) -> None:
        self._shown = shown.rstrip(b"/")
        self._root = root.rstrip(b"/")
        self._visible = visible

    def changes(self, changes: list[Change]) -> tuple[FsChange, ...]:
        """Return what may be told of some changes.  Raises OSError and RpcError."""
        paths = {change.path for change in changes}
        paths |= {change.old_path for change in changes if change.old_path is not None}
        seen = self._seen(paths)
        told = [self._told(change, seen) for change in changes]
        return tuple([each for each in told if each is not None])

    def errors(self, errors: list[tuple[bytes, str]]) -> tuple[FsWalkError, ...]:
        """Return the errors about folders that may be seen.  Raises OSError and RpcError."""
        seen = self._seen({path for path, _ in errors})
        told = [(path, text) for path, text in errors if path in seen]
        return tuple([FsWalkError(path=self._uri(path), message=text) for path, text in told])

    def _seen(self, paths: set[bytes]) -> set[bytes]:
        listed = list(paths)
        if not listed:
            return set()
        judged = self._visible([self._root + b"/" + path if path else self._root or b"/" for path in listed])
        return {path for path, visible in zip(listed, judged, strict=True) if visible}

    def _told(self, change: Change, seen: set[bytes]) -> FsChange | None:
        path, kind, old_path = change.path, change.kind, change.old_path
        if kind == RENAMED and old_path is not None and (path in seen) != (old_path in seen):
            # From or to a place that the client must not see: for it, that is nowhere.
            path, kind = (path, CREATED) if path in seen else (old_path, REMOVED)
            old_path = None
        if path not in seen:
            return None
        return FsChange(
            path=self._uri(path),
            kind=FsChangeKind(kind),
            is_directory=change.is_directory,
            old_path=None if old_path is None else self._uri(old_path),
        )

    def _uri(self, below: bytes) -> PathUri:
        return PathUri.from_native(self._shown + b"/" + below if below else self._shown or b"/")
