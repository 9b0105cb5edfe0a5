"""What a client asks about whole trees: methods of `RemoteFiles` that fetch page after page.

They are extensions, announced in `environmentInfo`; another server refuses them as unknown methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from execserver.client import wire
from execserver.client.errors import ProtocolViolation
from execserver.client.session import Session
from execserver.client.wire import RemotePath, Sandbox
from execserver.protocol.files import FsWalkError
from execserver.protocol.own_methods import FS_HASH
from execserver.protocol.paths import PathUri
from execserver.protocol.trees import FsHashEntry, FsHashParams

Entry = TypeVar("Entry", covariant=True)


class _Page(Protocol[Entry]):
    @property
    def entries(self) -> tuple[Entry, ...]: ...
    @property
    def errors(self) -> tuple[FsWalkError, ...]: ...
    @property
    def next(self) -> PathUri | None: ...


class TreeMethods:
    """Each yields what was found and, as `FsWalkError`, what could not be read, page after page.

    Raises `ProtocolViolation` for a server whose pages do not go on.
    """

    _session: Session

    def hash(
        self, path: RemotePath, *, offset: int = 0, length: int | None = None, sandbox: Sandbox = None
    ) -> Iterator[FsHashEntry | FsWalkError]:
        """Hash a file, or a part of it, or every regular file below a directory."""
        root, context = wire.path_uri(path), wire.sandbox_context(sandbox)
        return _paged(
            lambda after: self._session.call(
                FS_HASH,
                FsHashParams(path=root, after=after, offset=offset, length=length, sandbox=context),
            )
        )


def _paged(ask: Callable[[PathUri | None], _Page[Entry]]) -> Iterator[Entry | FsWalkError]:
    after: PathUri | None = None
    while True:
        page = ask(after)
        yield from page.entries
        yield from page.errors
        if page.next is None:
            return
        if page.next == after:
            raise ProtocolViolation("the server sends the same page again and again")
        after = page.next
