"""The facts of a real machine, and how paths are followed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from stat import S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.sandbox.policy.host import LINK_LIMIT, Host, walk
from tests.support.fake_host import FakeHost

HOST = Host()


def test_an_identity_is_of_what_is_there_links_not_followed(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    (tmp_path / "l").symlink_to("f")
    for name, kind in (("f", S_IFREG), ("l", S_IFLNK), ("", S_IFDIR)):
        path = os.fsencode(tmp_path / name)
        status = os.lstat(path)
        assert HOST.identity(path) == (status.st_dev, status.st_ino, kind)
    for gone in (b"/gone", os.fsencode(tmp_path / "f" / "x"), b"/" + b"x" * 300):
        assert HOST.identity(gone) is None


def test_a_stamp_tells_changed_files_and_links_apart_but_not_directories(tmp_path: Path) -> None:
    path, file = os.fsencode(tmp_path), tmp_path / "f"
    before = HOST.stamp(path)
    file.write_bytes(b"x")
    assert HOST.stamp(path) == before
    stamp = HOST.stamp(os.fsencode(file))
    assert stamp is not None
    os.utime(file, (1, 1))
    assert stamp[3] == 0 or HOST.stamp(os.fsencode(file)) != stamp


def test_many_places_at_once_are_as_each_by_itself(tmp_path: Path) -> None:
    """What was stamped holds exactly as long as stamping again gives the same."""
    (tmp_path / "d").mkdir()
    (tmp_path / "f").write_bytes(b"x")
    (tmp_path / "l").symlink_to("d")
    root = os.fsencode(tmp_path)
    places = [root + name for name in (b"", b"/d", b"/f", b"/l", b"/gone", b"/f/below", b"/" + b"x" * 300)]
    changes = (
        lambda: None,
        lambda: (tmp_path / "d" / "new").touch(),  # of a directory only who it is counts
        lambda: (tmp_path / "gone").mkdir(),
        lambda: (tmp_path / "f").rename(tmp_path / "moved"),
        lambda: (tmp_path / "l").unlink(),
        lambda: (tmp_path / "d").rename(tmp_path / "l"),
        lambda: (tmp_path / "d").write_bytes(b""),
    )
    for change in changes:
        stamps = {place: HOST.stamp(place) for place in places}
        change()
        for place in places:
            assert HOST.shows({place: stamps[place]}) == (HOST.stamp(place) == stamps[place]), place
        assert HOST.shows(stamps) == all(HOST.stamp(place) == stamps[place] for place in places)


def test_what_cannot_be_looked_at_is_never_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: bytes) -> os.stat_result:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(os, "lstat", refuse)
    assert not HOST.shows({b"/": None})
    assert not HOST.shows({b"/": (1, 2, S_IFDIR, 0)})


def test_what_is_hidden_counts_as_absent() -> None:
    class Hiding(Host):
        def hides(self, found: os.stat_result) -> bool:
            return True

    assert Hiding().shows({b"/": None})
    assert not Hiding().shows({b"/": HOST.stamp(b"/")})


def test_links_directories_and_content(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "l").symlink_to("d")
    (tmp_path / "f").write_bytes(b"gitdir: x")
    os.mkfifo(tmp_path / "p")
    root = os.fsencode(tmp_path)
    assert HOST.readlink(root + b"/l") == b"d"
    assert [HOST.is_dir(root + name) for name in (b"/d", b"/l", b"/f", b"/gone")] == [
        True,
        True,
        False,
        False,
    ]
    assert HOST.read_start(root + b"/f", 6) == b"gitdir"
    assert HOST.read_start(root + b"/p", 6) == b"", "and does not wait for a writer"
    with pytest.raises(OSError, match="Too many levels"):
        HOST.read_start(root + b"/l", 6)
    assert sorted(HOST.scan(root)) == [(b"d", S_IFDIR), (b"f", S_IFREG), (b"l", S_IFLNK), (b"p", S_IFIFO)]
    assert HOST.now() <= HOST.now()


@pytest.mark.parametrize(
    ("given_", "kept"), [(None, None), (b"", None), (b"x", None), (b"/a\0", None), (b"/t", b"/t")]
)
def test_the_folder_for_temporary_files_is_absolute_or_none(given_: bytes | None, kept: bytes | None) -> None:
    assert Host(given_).tmpdir == kept


TREE = FakeHost(
    {
        "/a/b/c": b"",
        "/a/up": "-> ../x",
        "/x/y": "dir",
        "/abs": "-> /a/b",
        "/loop": "-> loop",
        "/two": "-> abs/../up",
        "/gone": "-> a/none",
        "/shut": "locked",
    }
)


@pytest.mark.parametrize(
    ("path", "real", "rest", "links"),
    [
        (b"/", b"/", (), ()),
        (b"/a/b/c", b"/a/b/c", (), ()),
        (b"//a/./b/", b"/a/b", (), ()),
        (b"/a/up/y", b"/x/y", (), (b"/a/up",)),
        (b"/abs/c", b"/a/b/c", (), (b"/abs",)),
        (b"/two", b"/x", (), (b"/two", b"/abs", b"/a/up")),
        (b"/abs/..", b"/a", (), (b"/abs",)),
        (b"/../..", b"/", (), ()),
        (b"/a/no/d", b"/a", (b"no", b"d"), ()),
        (b"/a/b/c/d", b"/a/b/c", (b"d",), ()),
        (b"/gone/z", b"/a", (b"none", b"z"), (b"/gone",)),
        (b"/loop/z", b"/", (b"loop", b"z"), (b"/loop",) * LINK_LIMIT),
    ],
)
def test_a_path_is_followed_name_by_name(
    path: bytes, real: bytes, rest: tuple[bytes, ...], links: tuple[bytes, ...]
) -> None:
    found = walk(TREE, path)
    assert (found.path, found.rest, tuple(link for link, _ in found.links)) == (real, rest, links)
    assert found.stamp == TREE.stamp(real)
    assert found.blocked is False
    assert TREE.realpath(path) == (None if rest else real)


def test_what_may_not_be_looked_at_is_told() -> None:
    found = walk(TREE, b"/shut/a/b")
    assert (found.path, found.rest, found.blocked) == (b"/shut", (b"a", b"b"), True)
    assert found.whole() == b"/shut/a/b"
    assert walk(TREE, b"/none").whole() == b"/none"


_texts = st.lists(st.sampled_from(["a", "b", "..", ".", "l", "m"]), min_size=1, max_size=4).map("/".join)


@given(st.lists(st.tuples(_texts, _texts), max_size=5), _texts, st.booleans())
def test_paths_lead_where_the_kernel_leads(
    tmp_path_factory: pytest.TempPathFactory, links: list[tuple[str, str]], asked: str, absolute: bool
) -> None:
    root = tmp_path_factory.mktemp("walk")
    (root / "a" / "b").mkdir(parents=True)
    (root / "b").write_bytes(b"")
    for name, text in links:
        target = f"{root}/{text}" if absolute else text
        if not Path(os.path.realpath(os.path.dirname(f"{root}/{name}"))).is_relative_to(root):
            continue  # a link made before leads out of the tree, and nothing of it belongs there
        try:
            os.symlink(target, f"{root}/{name}")
        except OSError:
            continue
    path = os.fsencode(f"{root}/{asked}")
    try:
        expected: bytes | None = os.path.realpath(path, strict=True)
    except OSError:
        expected = None
    if asked.endswith("/.") or "b/." in asked or "b/l/.." in asked or any("b/." in text for _, text in links):
        return  # `realpath` takes dots after a file for nothing
    assert HOST.realpath(path) == expected
