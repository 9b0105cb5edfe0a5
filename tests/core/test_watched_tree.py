"""The folders of a watched tree, by their watches and their names."""

from __future__ import annotations

import pytest

from execserver.core.watched_tree import Folder, PathTooLong, WatchedTree
from tests.support.lives import assert_freed


def grown(*paths: bytes) -> tuple[WatchedTree, dict[bytes, Folder]]:
    """Return a tree with folders whose watches are 1, 2, 3, and these by their paths."""
    tree = WatchedTree(0)
    by_path = {b"": tree.root}
    for number, path in enumerate(paths, 1):
        above, _, name = path.rpartition(b"/")
        added = tree.add(by_path[above], name, number)
        assert added is not None
        by_path[path] = added[0]
    return tree, by_path


def test_a_path_is_that_of_now() -> None:
    tree, by_path = grown(b"a", b"a/b", b"c")
    assert by_path[b"a/b"].below(b"f") == b"a/b/f"
    assert tree.root.below(b"f") == b"f"
    assert tree.root.below() == b""
    tree.put(by_path[b"a"], by_path[b"c"], b"d")
    assert by_path[b"a/b"].below() == b"c/d/b"
    assert list(tree.root.folders) == [b"c"]


def test_what_is_dropped_takes_all_below_along() -> None:
    tree, by_path = grown(b"a", b"a/b", b"a/b/c", b"d")
    assert sorted(tree.drop(by_path[b"a"])) == [1, 2, 3]
    assert tree.numbers() == {0, 4}
    assert tree.drop(by_path[b"a"]) == []
    assert tree.get(2) is None


def test_a_known_folder_under_another_name_has_moved() -> None:
    tree, by_path = grown(b"a", b"a/b", b"c")
    assert tree.add(by_path[b"c"], b"a", 1) == (by_path[b"a"], [])
    assert by_path[b"a/b"].below() == b"c/a/b"
    assert len(tree) == 4


def test_a_folder_replaces_the_one_that_had_its_name() -> None:
    tree, _ = grown(b"a", b"a/b")
    added = tree.add(tree.root, b"a", 9)
    assert added is not None
    assert (added[0].below(), sorted(added[1])) == (b"a", [1, 2])
    assert tree.add(tree.root, b"a", 9) == (added[0], [])
    assert tree.numbers() == {0, 9}


def test_a_folder_is_not_put_below_itself() -> None:
    tree, by_path = grown(b"a", b"a/b")
    assert tree.add(by_path[b"a/b"], b"again", 1) is None
    assert tree.add(by_path[b"a"], b"again", 0) is None
    assert tree.numbers() == {0, 1, 2}


def test_a_path_that_cannot_be_is_an_error_however_deep_it_is() -> None:
    tree = WatchedTree(0)
    folder = tree.root
    for number in range(1, 5000):
        added = tree.add(folder, b"d", number)
        assert added is not None
        folder = added[0]
    with pytest.raises(PathTooLong):
        folder.below()
    tree.clear()
    assert len(tree) == 0


def test_a_tree_that_is_cleared_is_freed() -> None:
    def life(number: int) -> None:
        tree, _ = grown(b"a", b"a/b", b"a/b/c")
        tree.clear()

    assert_freed(life, 100)
