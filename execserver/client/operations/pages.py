"""What is asked page after page: what was found, and the pieces of an archive.

Each object asks for one page at a time, so whoever iterates decides when.  A server whose pages do not go on
is a `ProtocolViolation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from execserver.client.errors import ProtocolViolation
from execserver.client.operations.call import Operation, ask
from execserver.protocol.files import FsWalkError
from execserver.protocol.own_methods import FS_ARCHIVE
from execserver.protocol.paths import PathUri
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.protocol.trees import ArchivePosition, FsArchiveParams

MOST_BARREN: Final = 1000
"""How many pages of a listing or an archive may follow each other with nothing on them."""
MOST_BARREN_OF_A_SEARCH: Final = 10_000
"""As many where files without a match follow each other: a server looks for 5 s before it sends one."""

Entry = TypeVar("Entry")
EntryOfPage = TypeVar("EntryOfPage", covariant=True)


class _Page(Protocol[EntryOfPage]):
    """What one request brought, and, if there is more, where the next page begins."""

    @property
    def entries(self) -> tuple[EntryOfPage, ...]: ...
    @property
    def errors(self) -> tuple[FsWalkError, ...]: ...
    @property
    def next(self) -> PathUri | bytes | None: ...


Fetch: TypeAlias = Callable[[Any], Operation[_Page[Entry]]]
"""Asks for the page behind a mark, which is None or the `next` of an earlier page."""


class Pages(Generic[Entry]):
    """The pages of one question; `ended` is True behind the last one."""

    def __init__(self, fetch: Fetch[Entry], most_barren: int) -> None:
        """More pages than `most_barren` in a row without an entry are refused."""
        self.ended = False
        self._fetch = fetch
        self._most_barren = most_barren
        self._mark: PathUri | bytes | None = None
        self._barren = 0

    def next(self) -> Operation[list[Entry | FsWalkError]]:
        """Ask for the next page and return what is on it, which may be nothing.

        Raises as a call does; asked again, it then asks for the same page.
        """
        page = yield from self._fetch(self._mark)
        found: list[Entry | FsWalkError] = [*page.entries, *page.errors]
        self._barren = 0 if found else self._barren + 1
        if page.next is None:
            self.ended = True
        elif page.next == self._mark:
            raise ProtocolViolation("the server sends the same page again and again")
        elif self._barren > self._most_barren:
            raise ProtocolViolation("the server sends pages without anything new")
        self._mark = page.next
        return found


class Archive:
    """The pieces of a tar archive of a file or of what is in a directory; `ended` behind the last one."""

    def __init__(
        self, root: PathUri, errors: list[FsWalkError], context: FileSystemSandboxContext | None
    ) -> None:
        """What could not be packed is added to `errors`."""
        self.ended = False
        self._root = root
        self._errors = errors
        self._context = context
        self._position: ArchivePosition | None = None
        self._barren = 0

    def next(self) -> Operation[bytes]:
        """Ask for the next piece.  Raises as a call does."""
        params = FsArchiveParams(path=self._root, position=self._position, sandbox=self._context)
        page = yield from ask(FS_ARCHIVE, params)
        self._errors += page.errors
        self._barren = 0 if page.chunk else self._barren + 1
        if page.next is None:
            self.ended = True
        elif page.next == self._position or self._barren > MOST_BARREN:
            raise ProtocolViolation("the server sends the same page again and again")
        self._position = page.next
        return page.chunk
