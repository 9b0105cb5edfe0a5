"""What has to be done so that one tree becomes like another.  Pure.

A file is the same if size and time are, or if its content is known to be; a link if its target is.  A folder
and something else never replace each other unless deleting is allowed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from execserver.box.trees.nodes import PERMISSIONS, Kind, Node, Tree, beside, is_fresh, is_part


class Plan:
    """Names by what is done with them, each list in the order of doing; `refused` are left as they are."""

    def __init__(self, files: Iterable[bytes] = ()) -> None:
        self.cleared: list[bytes] = []  # in the way of another kind; the deepest first
        self.folders: list[bytes] = []
        self.files = list(files)
        self.links: list[bytes] = []
        self.stamps: list[bytes] = []  # same content, other permissions or time
        self.removals: list[bytes] = []  # the deepest first
        self.settled: list[bytes] = []  # folders to stamp in the end; the deepest first
        self.refused: list[bytes] = []
        self.equal = 0

    @property
    def is_empty(self) -> bool:
        """True if nothing has to be done."""
        return not (
            *self.cleared, *self.folders, *self.files, *self.links, *self.stamps, *self.removals,
            *self.settled, *self.refused,
        )  # fmt: skip


def doubtful(source: Tree, target: Tree, *, checksum: bool) -> list[bytes]:
    """Return the files whose contents have to be compared: those of equal size and another time, or all."""
    return [
        name
        for name, node in source.items()
        if (there := target.get(name)) is not None
        and node.kind is there.kind is Kind.FILE
        and node.size == there.size
        and (checksum or node.modified_ns != there.modified_ns)
    ]


def plan(
    source: Tree, target: Tree, same: Collection[bytes], other: Collection[bytes], *, delete: bool
) -> Plan:
    """Return what makes `target` like `source`.

    `same` and `other` are the files whose contents are known to be equal, and to differ.  With `delete` what
    the source does not have goes, too.
    """
    made = Plan()
    touched: set[bytes] = set()  # folders in which something changes
    blocked: set[bytes] = set()
    cleared: set[bytes] = set()
    for name in sorted(source, key=_order):
        node, there = source[name], target.get(name)
        if _parent(name) in blocked and name:
            blocked.add(name)
            continue
        if there is not None and (node.kind is Kind.FOLDER) != (there.kind is Kind.FOLDER):
            if not delete or not name:
                made.refused.append(name)
                blocked.add(name)
                continue
            cleared.add(name)
            there = None
        changed = _decide(made, name, node, there, name in same, name in other)
        if changed and name:
            touched.add(_parent(name))
    if cleared:
        made.cleared = sorted(
            (name for name in target if _is_within(name, cleared)), key=_order, reverse=True
        )
    if delete and source[b""].kind is Kind.FOLDER and b"" not in blocked:
        gone = _extraneous(source, target).difference(made.cleared)
        made.removals = sorted(gone, key=_order, reverse=True)
        touched.update(_parent(name) for name in gone)
    stamped = [
        name
        for name, node in source.items()
        if node.kind is Kind.FOLDER and name not in blocked and _settles(name, node, target, touched)
    ]
    made.settled = sorted(stamped, key=_order, reverse=True)
    return made


def _decide(made: Plan, name: bytes, node: Node, there: Node | None, same: bool, other: bool) -> bool:
    """Put a name into its list; return whether that changes the folder it is in."""
    if node.kind is Kind.FOLDER:
        if there is None:
            made.folders.append(name)
        return there is None
    if node.kind is Kind.LINK:
        if there is not None and there.kind is Kind.LINK and there.target == node.target:
            made.equal += 1
            return False
        made.links.append(name)
        return True
    is_same = there is not None and there.kind is Kind.FILE and node.size == there.size and not other
    if there is None or not (is_same and (same or there.modified_ns == node.modified_ns)):
        made.files.append(name)
        return True
    if _stamp(node) != _stamp(there):
        made.stamps.append(name)
    else:
        made.equal += 1
    return False


def _settles(name: bytes, node: Node, target: Tree, touched: set[bytes]) -> bool:
    there = target.get(name)
    return there is None or there.kind is not Kind.FOLDER or name in touched or _stamp(node) != _stamp(there)


def _extraneous(source: Tree, target: Tree) -> set[bytes]:
    parts = {beside(name) for name, node in source.items() if node.kind is Kind.FILE}
    return {
        name
        for name in target
        if name and name not in source and not (is_part(name) and name in parts) and not is_fresh(name)
    }


def _is_within(name: bytes, tops: set[bytes]) -> bool:
    while name:
        if name in tops:
            return True
        name = _parent(name)
    return False


def _stamp(node: Node) -> tuple[int, int]:
    return node.mode & PERMISSIONS, node.modified_ns


def _parent(name: bytes) -> bytes:
    return name.rpartition(b"/")[0]


def _order(name: bytes) -> list[bytes]:
    return name.split(b"/") if name else []
