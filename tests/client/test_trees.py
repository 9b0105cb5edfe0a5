"""What is asked about whole trees, with the client and a real server."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from execserver.client import (
    ExecServerClient,
    InvalidParamsError,
    InvalidRequestError,
    NotFoundError,
    ProtocolViolation,
)
from execserver.client.operations import trees
from execserver.client.operations.call import Operation
from execserver.client.operations.pages import MOST_BARREN, MOST_BARREN_OF_A_SEARCH
from execserver.protocol.files import FsWalkEntry, FsWalkError
from execserver.protocol.own_methods import FS_HASH
from execserver.protocol.paths import PathUri
from execserver.protocol.trees import (
    FsExtractResponse,
    FsHashEntry,
    FsHashParams,
    FsHashResponse,
    FsSearchResponse,
)
from tests.client.test_file_changes import only

ODD = b"\xff\xfe?"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def hashes(
    remote: ExecServerClient, root: Path, sandbox: dict[str, object] | None = None
) -> dict[bytes, str]:
    """Return the digests below a folder; those of what could not be read are the errors."""
    found: dict[bytes, str] = {}
    for each in remote.files.hash(root, sandbox=sandbox):
        below = os.path.relpath(each.path.native(), os.fsencode(root))
        found[below] = each.sha256 if isinstance(each, FsHashEntry) else each.message
    return found


@pytest.fixture
def tree(folder: Path) -> Path:
    """A tree with a file of each kind that may surprise."""
    root = folder / "tree"
    (root / "a" / "deep").mkdir(parents=True)
    (root / "a.txt").write_bytes(b"beside")
    (root / "a" / "deep" / "one").write_bytes(b"1")
    (root / "a" / "two").write_bytes(b"")
    (root / "b").write_bytes(b"x" * 2_500_000)
    (root / "link").symlink_to("b")
    (root / "round").symlink_to(".")
    os.mkfifo(root / "fifo")
    (root / os.fsdecode(ODD)).write_bytes(b"odd")
    return root


def test_a_tree_is_hashed_in_pages(remote: ExecServerClient, tree: Path) -> None:
    expected = {b"a/deep/one": b"1", b"a/two": b"", b"a.txt": b"beside", b"b": b"x" * 2_500_000, ODD: b"odd"}
    assert hashes(remote, tree) == {name: sha(data) for name, data in expected.items()}
    pages: list[list[bytes]] = []
    after: PathUri | None = None
    while True:
        params = FsHashParams(path=PathUri.from_native(os.fsencode(tree)), after=after, max_entries=2)
        page = remote.files._session.call(FS_HASH, params)
        pages.append([os.path.relpath(each.path.native(), os.fsencode(tree)) for each in page.entries])
        after = page.next
        if after is None:
            break
    assert pages == [[b"a/deep/one", b"a/two"], [b"a.txt", b"b"], [ODD]]


def test_a_file_and_a_part_of_it_are_hashed(remote: ExecServerClient, tree: Path) -> None:
    for place in (tree / "b", tree / "link"):
        (whole,) = remote.files.hash(place)
        assert isinstance(whole, FsHashEntry)
        assert (whole.sha256, whole.size) == (sha(b"x" * 2_500_000), 2_500_000)
        assert whole.modified_at_ns == os.stat(tree / "b").st_mtime_ns
    (part,) = remote.files.hash(tree / "a.txt", offset=2, length=3)
    (behind,) = remote.files.hash(tree / "a.txt", offset=200)
    assert isinstance(part, FsHashEntry)
    assert isinstance(behind, FsHashEntry)
    assert (part.sha256, behind.sha256) == (sha(b"sid"), sha(b""))


def test_the_root_of_a_tree_may_be_a_link(remote: ExecServerClient, tree: Path) -> None:
    assert hashes(remote, tree / "round") == hashes(remote, tree)


def test_wrong_questions_about_trees_are_refused(remote: ExecServerClient, tree: Path) -> None:
    with pytest.raises(NotFoundError):
        list(remote.files.hash(tree / "none"))
    with pytest.raises(InvalidRequestError, match="is not a file"):
        list(remote.files.hash(tree / "fifo"))
    with pytest.raises(InvalidRequestError, match="for a file, not for a directory"):
        list(remote.files.hash(tree, length=1))
    root, elsewhere = PathUri.from_native(os.fsencode(tree)), PathUri.from_native(b"/elsewhere")
    beside = FsHashParams(path=root, after=elsewhere)
    with pytest.raises(InvalidRequestError, match="below `path`"):
        remote.files._session.call(FS_HASH, beside)


def test_a_file_of_more_than_the_limit_is_hashed_in_parts(remote: ExecServerClient, tree: Path) -> None:
    with open(tree / "a" / "two", "wb") as file:
        file.truncate(5 * 1024**3)
    message = hashes(remote, tree)[b"a/two"]
    assert "ask for parts" in message
    (part,) = remote.files.hash(tree / "a" / "two", offset=1, length=10)
    assert isinstance(part, FsHashEntry)
    assert part.sha256 == sha(bytes(10))


def found(remote: ExecServerClient, root: Path, pattern: str) -> list[bytes]:
    """Return the paths below a folder that match; directories end with a slash."""
    names = []
    for each in remote.files.glob(root, pattern):
        assert isinstance(each, FsWalkEntry)
        end = b"/" if each.kind.value == "directory" else b""
        names.append(os.path.relpath(each.path.native(), os.fsencode(root)) + end)
    return names


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", [b"a/", b"a.txt", b"b", ODD]),
        ("**/*", [b"a/", b"a/deep/", b"a/deep/one", b"a/two", b"a.txt", b"b", ODD]),
        ("a/**", [b"a/deep/", b"a/deep/one", b"a/two"]),
        ("**/{one,two}", [b"a/deep/one", b"a/two"]),
        ("a/deep/one", [b"a/deep/one"]),
        ("a.[st]xt", [b"a.txt"]),
        ("a/deep/one/more", []),
        ("??\\?", [ODD]),
    ],
)
def test_paths_are_found_by_patterns(
    remote: ExecServerClient, tree: Path, pattern: str, expected: list[bytes]
) -> None:
    assert found(remote, tree, pattern) == expected


def test_many_paths_come_in_pages(remote: ExecServerClient, folder: Path) -> None:
    names = [f"{number:04}" for number in range(2500)]
    for name in names:
        (folder / name).touch()
    assert found(remote, folder, "**/*") == [name.encode() for name in names]


@pytest.mark.parametrize("pattern", ["", "/a", "a{b", "[b-a]", "{a,b}" * 7 + "c" * 20, "\x00", "\\"])
def test_a_malformed_pattern_is_refused(remote: ExecServerClient, tree: Path, pattern: str) -> None:
    with pytest.raises(InvalidParamsError, match="pattern"):
        found(remote, tree, pattern)


def answered(asking: Operation[object], answer: object) -> object:
    """Carry out an operation of one request, with this answer; return what it returns."""
    next(asking)
    with pytest.raises(StopIteration) as end:
        asking.send(answer)
    return end.value.value


def test_pages_that_do_not_go_on_end_the_client() -> None:
    pages = trees.hash_pages("/")
    assert answered(pages.next(), barren(0)) == []
    with pytest.raises(ProtocolViolation, match="the same page"):
        answered(pages.next(), barren(0))


def barren(number: int) -> FsHashResponse:
    return FsHashResponse(entries=(), errors=(), next=PathUri.from_native(b"/%d" % number))


def test_pages_without_an_entry_are_bounded() -> None:
    pages = trees.hash_pages("/")
    for number in range(MOST_BARREN):
        assert answered(pages.next(), barren(number)) == []
    with pytest.raises(ProtocolViolation, match="anything new"):
        answered(pages.next(), barren(MOST_BARREN))


def test_pages_of_a_search_without_a_match_are_bounded_too() -> None:
    paths, lines = trees.glob_pages("/", "*"), trees.search_pages("/", "x")
    for number in range(MOST_BARREN_OF_A_SEARCH):
        assert answered(paths.next(), barren(number)) == answered(lines.next(), no_match(number)) == []
    with pytest.raises(ProtocolViolation, match="anything new"):
        answered(paths.next(), barren(MOST_BARREN_OF_A_SEARCH))
    with pytest.raises(ProtocolViolation, match="anything new"):
        answered(lines.next(), no_match(MOST_BARREN_OF_A_SEARCH))


def no_match(number: int) -> FsSearchResponse:
    return FsSearchResponse(matches=(), errors=(), next=PathUri.from_native(b"/%d" % number))


def test_a_server_that_unpacks_more_than_it_was_sent_is_refused() -> None:
    extraction = trees.Extraction("/")
    more = FsExtractResponse(consumed=513, position=None, errors=(), done=False)
    with pytest.raises(ProtocolViolation, match="more"):
        answered(extraction.finish(), more)


def test_a_directory_too_deep_is_told(remote: ExecServerClient, folder: Path) -> None:
    deepest = folder.joinpath(*["d"] * 66)
    deepest.mkdir(parents=True)
    (deepest / "file").write_text("x")
    (found,) = remote.files.hash(folder)
    assert isinstance(found, FsWalkError)
    assert "deeper than 64" in found.message


def test_a_sandbox_holds_for_what_is_asked_about_trees(remote: ExecServerClient, tmp_path: Path) -> None:
    report = remote.environment_sandbox()
    if not report.native:
        found = [f"{each.name}: {each.blocker}" for each in report.checks if not each.works]
        pytest.skip(f"no sandbox root can be made here: {'; '.join(found)}")
    folder = tmp_path / "in"
    (folder / "hidden").mkdir(parents=True)
    (folder / "kept").write_text("kept")
    (folder / "hidden" / "secret").write_text("secret")
    (folder / "way").symlink_to("hidden")
    found_hashes = hashes(remote, folder, only(folder))
    assert found_hashes[b"kept"] == sha(b"kept")
    assert sha(b"secret") not in found_hashes.values()
    seen = [each.path.native() for each in remote.files.glob(folder, "**/*", sandbox=only(folder))]
    assert os.fsencode(folder / "kept") in seen
    assert os.fsencode(folder / "hidden" / "secret") not in seen
    for secret in (folder / "hidden" / "secret", folder / "way" / "secret"):
        with pytest.raises((InvalidRequestError, NotFoundError)):
            list(remote.files.hash(secret, sandbox=only(folder)))
