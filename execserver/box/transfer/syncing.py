"""Makes a file or tree on one side like that on the other: looks at both, compares, and does what differs.

Whoever calls it gets a status of 1 for anything that could not be done, and everything else is done then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from execserver.box.commands.running import place_of
from execserver.box.connecting import Box, unreachable
from execserver.box.shown import shown
from execserver.box.transfer import comparing
from execserver.box.transfer.changes import AT_ONCE, Hopeless, side_by_side
from execserver.box.transfer.comparing import Plan
from execserver.box.transfer.report import Report
from execserver.box.trees import here
from execserver.box.trees.here import Changed, Lister
from execserver.box.trees.native import native
from execserver.box.trees.nodes import Excluded, Kind, TooLarge, Tree
from execserver.box.trees.others import Others
from execserver.box.trees.there import BoxTree
from execserver.client.errors import NotFoundError, RequestFailed
from execserver.leaving import CANNOT, Leave, failure
from execserver.protocol.paths import PathUri

if TYPE_CHECKING:
    from execserver.client.client import ExecServerClient

_MOST_LOOKS = 10  # at a source in which folders appear meanwhile
_PIECE = 1024**3  # what a box hashes in one request


class Manner(NamedTuple):
    """How a sync is done."""

    delete: bool = False
    checksum: bool = False
    dry: bool = False
    exclude: tuple[str, ...] = ()
    fresh: bool = False  # nothing that is there is looked at, or gone on with
    strict: bool = False  # to leave out what is no file, folder or link is a failure
    again: str = ""  # how a person goes on with what was cut


class EmptySource(Leave):
    """Everything in the target would be deleted."""

    def __init__(self) -> None:
        self.text = "the source is empty, and with --delete everything in the target would go"
        self.cure = "remove that yourself, if it is what you want"
        super().__init__(CANNOT, stderr=f"Error: {self.text}\n  What to do: {self.cure}\n")


class Sync:
    """Two paths that are to be the same: one of this machine, an absolute path, and one of a box."""

    def __init__(
        self,
        client: ExecServerClient,
        here_: bytes,
        there: bytes,
        report: Report,
        manner: Manner,
        *,
        up: bool,
    ) -> None:
        """`up`: the box is made like this machine, else this machine like the box.

        `cover`, if set, is told the folders of a source here before it is looked at, until none is new.
        """
        self.here = here_
        self.there = there
        self.cover: Callable[[Iterable[bytes]], bool] | None = None
        self.report = report
        self.up = up
        self._is_told = False  # what happened: nothing more is said of a further look that finds nothing
        self._manner = manner
        self._excluded = Excluded(manner.exclude)
        self._others = ""  # what was said of those that were left out at the last look
        self._box = BoxTree(client, there)

    def run(self) -> int:
        """Compare both sides and do what differs; return the exit status.  Raises Leave."""
        target = {} if self._manner.fresh else self.look(source=False)[0]
        return self.become(target)[0]

    def become(self, target: Tree) -> tuple[int, Tree]:
        """Make the target, which is like this now, like the source; return the exit status and the source."""
        source, is_whole = self.look(source=True)
        if b"" not in source:
            path = self.here if self.up else self.there
            raise failure(f"{shown(path, 300)}: No such file or directory", "look at the path of the source")
        if self._manner.delete and source[b""].kind is Kind.FOLDER and len(source) == 1:
            raise EmptySource
        return self._made_same(source, target, is_whole), source

    def reached(self, target: Tree, source: Tree) -> Tree:
        """Return what the target is once everything has been done."""
        return dict(source) if self._manner.delete else {**target, **source}

    def _made_same(self, source: Tree, target: Tree, is_whole: bool) -> int:
        delete = self._manner.delete and is_whole
        if self._manner.delete and not is_whole:
            self.report.say("nothing is deleted, since the source could not be read as a whole")
        same, other = self._compared(source, target)
        plan = comparing.plan(source, target, same, other, delete=delete)
        self.report.plan(plan, source)
        if not is_whole:
            self.report.failures += 1
        try:
            if not self._manner.dry:
                self._apply(plan, source, target)
        except Hopeless as error:
            cure = "take a target that can be written to"
            if error.is_full:
                cure = f"free some space there, and {self._manner.again}: it goes on behind what has come"
            self.report.complain(f"the target takes nothing more: {error}", cure)
        finally:
            self.report.stop()
        if not (self._is_told and plan.is_empty):
            self.report.finish(plan, source)
            self._is_told = True
        return 1 if self.report.failures else 0

    def look(self, *, source: bool) -> tuple[Tree, bool]:
        """Return one side's tree, and whether it could be read as a whole.  Raises Leave."""
        others = Others()
        if source != self.up:
            found, is_whole = self._box.tree(self._excluded, self.report.say, others, keep_parts=not source)
        else:
            found, is_whole = self._look_here(others, source=source)
        if not source:
            return found, is_whole
        if others.text and others.text != self._others:
            self.report.say(others.text)
        self._others = others.text
        return found, is_whole and not (others.count and self._manner.strict)

    def _look_here(self, others: Others, *, source: bool) -> tuple[Tree, bool]:
        lister = Lister(self._excluded, self.report.say, others, parts=not source)
        try:
            found = lister.tree(self.here)
            for _ in range(_MOST_LOOKS if source else 0):
                folders = (name for name, node in found.items() if node.kind is Kind.FOLDER)
                if self.cover is None or not self.cover(folders):
                    break
                others.clear()
                found = lister.tree(self.here)
            return found, lister.is_whole
        except OSError as error:
            raise failure(f"{shown(self.here, 300)}: {error.strerror}") from None

    def _apply(self, plan: Plan, source: Tree, target: Tree) -> None:
        resumes = not self._manner.fresh
        if plan.is_empty:
            return
        if self.up:
            from execserver.box.transfer.upload import Upload  # late, as the other: a copy needs one of them

            Upload(self.here, self._box, self.report, resumes=resumes).apply(plan, source, target)
            return
        from execserver.box.transfer.download import Download

        try:
            download = Download(self._box, self.here, self.report, resumes=resumes)
        except OSError as error:
            raise failure(f"{shown(os.path.dirname(self.here), 300)}: {error.strerror}") from None
        try:
            download.apply(plan, source, target)
        finally:
            download.close()

    # --- contents ----------------------------------------------------------------------------------------

    def _compared(self, source: Tree, target: Tree) -> tuple[set[bytes], set[bytes]]:
        """Return the files whose contents are equal, and those whose contents differ."""
        names = comparing.doubtful(source, target, checksum=self._manner.checksum)
        files = sum(node.kind is Kind.FILE for node in source.values())
        known: dict[bytes, str] = {}
        if len(names) > AT_ONCE and len(names) * 2 > files and not self._manner.exclude:
            known = self._box.digests()  # few requests for many files
        same: set[bytes] = set()
        other: set[bytes] = set()

        def compare(name: bytes) -> tuple[bytes, bool]:
            return name, self._is_same(name, source[name].size, known.get(name))

        for name, is_same in side_by_side(compare, names, AT_ONCE):
            (same if is_same else other).add(name)
        return same, other

    def _is_same(self, name: bytes, size: int, known: str | None) -> bool:
        try:
            fd = here.opened(os.path.join(self.here, name) if name else self.here)
        except (OSError, Changed):
            return False  # what is done then tells why
        try:
            if known is not None:
                return here.digest(fd, 0, size) == known
            return all(
                here.digest(fd, at, min(_PIECE, size - at))
                == self._box.digest(name, at, min(_PIECE, size - at))
                for at in range(0, size, _PIECE)
            )
        except (RequestFailed, Changed):
            return False
        finally:
            os.close(fd)


def box_path(client: ExecServerClient, box: Box, path: str, *, follow: bool) -> bytes:
    """Return an absolute path of a box for one that a person typed, relative to the home.

    With `follow` a link that leads somewhere is resolved.  Raises Leave for a box that cannot do this.
    """
    if not client.extensions.fs_many:
        raise without_trees(box)
    full = native(place_of(client, box, path))
    if full.startswith(b"//"):
        full = full[1:]
    if follow:
        try:
            full = native(client.canonicalize(PathUri.from_native(full)))
        except NotFoundError:
            pass  # it is made, or told to be missing
    _refuse_root(full)
    return full


def without_trees(box: Box) -> Leave:
    """Return the Leave for a box whose server is another one, or an older one."""
    return unreachable(
        f"{shown(box.name, 200)}: this server cannot list trees with their times and permissions",
        "use a newer execserver there",
    )


def local_path(path: str, *, follow: bool) -> bytes:
    """Return an absolute path of this machine; with `follow` links are resolved."""
    full = os.fsencode(path)
    full = os.path.realpath(full) if follow else os.path.abspath(full)
    _refuse_root(full)
    return full


def _refuse_root(path: bytes) -> None:
    if path == b"/":
        raise failure("the root folder itself cannot be one of the sides", "name a folder below it")


def refused(box: Box, error: Exception) -> Leave:
    """Return the Leave for what a box, or a tree, does not allow."""
    if isinstance(error, TooLarge):
        return failure(f"{error}: that is more than can be compared", "take a part of the tree")
    cure = "the folder that the target is in must be there" if isinstance(error, NotFoundError) else ""
    text = error.message if isinstance(error, RequestFailed) else str(error)
    return failure(f"{shown(box.name, 200)}: {shown(text, 1000)}", cure)
