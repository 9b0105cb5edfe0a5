"""What a client asks about whole trees: methods of `RemoteFiles` that fetch page after page.

They are extensions, announced in `environmentInfo`; another server refuses them as unknown methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from execserver.client.greenlets.session import Session
from execserver.client.operations import trees
from execserver.client.operations.call import drive
from execserver.client.operations.pages import Pages
from execserver.client.rules.wire import RemotePath, Sandbox
from execserver.protocol.batches import FsListEntry, FsReadManyFile, FsWriteEntry, FsWriteError
from execserver.protocol.files import FsWalkEntry, FsWalkError
from execserver.protocol.trees import FsHashEntry, FsSearchMatch

Entry = TypeVar("Entry")


class TreeMethods:
    """Each yields what was found and, as `FsWalkError`, what could not be read, page after page.

    Raises `ProtocolViolation` for a server whose pages do not go on.
    """

    _session: Session

    def hash(
        self, path: RemotePath, *, offset: int = 0, length: int | None = None, sandbox: Sandbox = None
    ) -> Iterator[FsHashEntry | FsWalkError]:
        """Hash a file, or a part of it, or every regular file below a directory."""
        return _each(self._session, trees.hash_pages(path, offset, length, sandbox))

    def glob(
        self, path: RemotePath, pattern: str, *, gitignore: bool = False, sandbox: Sandbox = None
    ) -> Iterator[FsWalkEntry | FsWalkError]:
        """Find files and directories below a directory; `pattern` is relative to it.

        With `gitignore` what git would ignore is left out, and `.git`.
        """
        return _each(self._session, trees.glob_pages(path, pattern, gitignore, sandbox))

    def search(
        self,
        path: RemotePath,
        pattern: str,
        *,
        literal: bool = False,
        ignore_case: bool = False,
        include: str | None = None,
        hidden: bool = False,
        gitignore: bool = False,
        sandbox: Sandbox = None,
    ) -> Iterator[FsSearchMatch | FsWalkError]:
        """Search a file, or the files below a directory, for lines with a match of a regular expression.

        With `gitignore` files that git would ignore are left out.
        """
        pages = trees.search_pages(
            path,
            pattern,
            literal=literal,
            ignore_case=ignore_case,
            include=include,
            hidden=hidden,
            gitignore=gitignore,
            sandbox=sandbox,
        )
        return _each(self._session, pages)

    def archive(
        self, path: RemotePath, errors: list[FsWalkError], *, sandbox: Sandbox = None
    ) -> Iterator[bytes]:
        """Yield the pieces of a tar archive of a file or of what is in a directory.

        What could not be packed is added to `errors`.
        """
        pieces = trees.archive_pieces(path, errors, sandbox)
        while not pieces.ended:
            yield drive(self._session, pieces.next())

    def extract(
        self, path: RemotePath, pieces: Iterable[bytes], *, sandbox: Sandbox = None
    ) -> list[FsWalkError]:
        """Unpack a tar archive into a directory; return what could not be unpacked.

        Raises ValueError for an archive that ends too early.
        """
        extraction = trees.Extraction(path, sandbox)
        for piece in pieces:
            drive(self._session, extraction.feed(piece))
            if extraction.done:
                break
        return drive(self._session, extraction.finish())

    def list(
        self, path: RemotePath, *, other: Callable[[bytes], None] | None = None, sandbox: Sandbox = None
    ) -> Iterator[FsListEntry | FsWalkError]:
        """List a file, or a directory with all that is below it; names are relative, its own is empty.

        `other` gets the names of devices, FIFOs and sockets, which are not listed.
        """
        return _each(self._session, trees.list_pages(path, sandbox, other))

    def read_many(
        self, path: RemotePath, names: Sequence[bytes], *, sandbox: Sandbox = None
    ) -> tuple[FsReadManyFile, ...]:
        """Read files below a directory, each of 1 MiB at most; the answer may be about the first only."""
        return drive(self._session, trees.read_many(path, names, sandbox))

    def write_many(
        self, path: RemotePath, entries: Sequence[FsWriteEntry], *, sandbox: Sandbox = None
    ) -> tuple[FsWriteError, ...]:
        """Make, replace and remove what is below a directory, each entry as a whole; return what failed."""
        return drive(self._session, trees.write_many(path, entries, sandbox))

    def write_parts(
        self, path: RemotePath, entries: Iterable[FsWriteEntry], *, sandbox: Sandbox = None
    ) -> None:
        """Add pieces to a file below a directory, in order, each as an entry with `part` of `write_many`.

        Up to 4 MiB of them are on their way before the first is answered, and their bytes may go without
        base64.  Raises `RequestFailed` as soon as one is refused, `WaitTimeout` for an answer that takes
        longer than the client's `request_timeout`.
        """
        from execserver.client.greenlets.pipelining import write_parts  # late: few programs send much

        write_parts(self._session, (trees.part_params(path, entry, sandbox) for entry in entries))


def _each(session: Session, pages: Pages[Entry]) -> Iterator[Entry | FsWalkError]:
    while not pages.ended:
        yield from drive(session, pages.next())
