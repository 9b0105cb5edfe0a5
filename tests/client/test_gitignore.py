"""What git ignores is left out on request, with the client and a real server."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from execserver.client import ExecServerClient
from execserver.protocol.files import FsWalkError
from execserver.protocol.own_methods import FS_GLOB
from execserver.protocol.paths import PathUri
from execserver.protocol.trees import FsGlobParams, FsSearchMatch
from tests.client.test_file_changes import only
from tests.support.git import git, listed, needs_git

LINES = (
    *("*.o", "/build", "b*/", "!keep.o", "**/tmp", "x/**", "/x/y", "!x/", "a/*/c", "?", "[a-c]", "*.log"),
    *("!*.log", "a", "!a", "/a/b/", "src/*.py", "!src/b.py", "*~", "\\!bang", "# no rule", ""),
)
NAMES = (
    "a",
    "b",
    "c",
    "build",
    "tmp",
    "x",
    "y",
    "src",
    "one.o",
    "keep.o",
    "b.py",
    "z.log",
    "!bang",
    "w~",
    ".h",
)


def found(
    remote: ExecServerClient, root: Path, sandbox: dict[str, object] | None = None
) -> tuple[set[bytes], list[str]]:
    """Return the files below a folder that are not ignored, by their paths, and the errors."""
    files, errors = set(), []
    for each in remote.files.glob(root, "**/*", gitignore=True, sandbox=sandbox):
        if isinstance(each, FsWalkError):
            errors.append(each.message)
        elif each.kind.value == "file":
            files.add(os.path.relpath(each.path.native(), os.fsencode(root)))
    return files, errors


def grow(root: Path, seed: int) -> None:
    """Make a tree with rules in many of its folders."""
    chosen = random.Random(seed)
    folders = [root]
    for _ in range(25):
        folders.append(chosen.choice(folders[-8:]) / chosen.choice(NAMES))
        folders[-1].mkdir(exist_ok=True)
    for folder in sorted({*folders}):
        for name in chosen.sample(NAMES, 6):
            if not (folder / name).exists():
                (folder / name).touch()
        if folder == root or chosen.random() < 0.4:
            (folder / ".gitignore").write_text("\n".join(chosen.choices(LINES, k=5)) + "\n")


@needs_git
@pytest.mark.parametrize("seed", range(3))
def test_what_git_lists_is_found(remote: ExecServerClient, folder: Path, seed: int) -> None:
    root = folder / "tree"
    root.mkdir()
    git(root, "init", "-q")
    (root / ".git" / "info" / "exclude").write_text("*.py\n!b.py\n")
    grow(root, seed)
    expected = listed(root)
    assert found(remote, root) == (expected, [])
    # From a folder within, the rules above it hold as well.
    tops = {path.partition(b"/")[0] for path in expected if b"/" in path}
    assert tops
    for top in tops:
        inside = {path[len(top) + 1 :] for path in expected if path.startswith(top + b"/")}
        assert found(remote, root / os.fsdecode(top)) == (inside, [])


def test_rules_hold_in_every_page_and_for_lines(remote: ExecServerClient, folder: Path) -> None:
    for name in ("a/skip/one", "a/skip/two", "a/three", "b/skip/four", "five"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("line\n")
    (folder / "a" / ".gitignore").write_text("skip/\n")
    (folder / ".git").write_text("gitdir: elsewhere\n")
    after: PathUri | None = None
    pages = []
    while True:
        root = PathUri.from_native(os.fsencode(folder))
        params = FsGlobParams(path=root, pattern="**/[!a.]*", gitignore=True, after=after, max_entries=1)
        page = remote.files._session.call(FS_GLOB, params)
        pages += [os.path.relpath(each.path.native(), os.fsencode(folder)) for each in page.entries]
        after = page.next
        if after is None:
            break
    assert pages == [b"a/three", b"b", b"b/skip", b"b/skip/four", b"five"]
    # A page that begins within what is ignored: whoever asked for the page before had other rules.
    inside = PathUri.from_native(os.fsencode(folder / "a" / "skip" / "one"))
    params = FsGlobParams(path=root, pattern="**/t*", gitignore=True, after=inside)
    assert [
        each.path.native().rpartition(b"/")[2] for each in remote.files._session.call(FS_GLOB, params).entries
    ] == [b"three"]
    lines = list(remote.files.search(folder, "line", gitignore=True))
    assert all(isinstance(each, FsSearchMatch) for each in lines)
    assert {os.path.basename(each.path.native()) for each in lines} == {b"three", b"four", b"five"}


def test_a_file_of_rules_beyond_the_limits_is_told(remote: ExecServerClient, folder: Path) -> None:
    (folder / "x").touch()
    (folder / ".gitignore").write_text("x\n" * 5001)
    files, errors = found(remote, folder)
    assert files == {b"x", b".gitignore"}
    assert ["more than 5000 rules" in error for error in errors] == [True]
    (folder / ".gitignore").write_bytes(b"x\n" + b"#" * 300_000)
    assert ["more than 262144 bytes" in error for error in found(remote, folder)[1]] == [True]


def test_a_sandbox_holds_for_the_rules(remote: ExecServerClient, folder: Path) -> None:
    hidden = folder / "hidden"
    hidden.mkdir()
    (hidden / "rules").write_text("*.o\n")
    (folder / "sub").mkdir()
    (folder / "sub" / "one.o").touch()
    (folder / "sub" / ".gitignore").symlink_to("../hidden/rules")
    files, _ = found(remote, folder / "sub", only(folder))
    assert b"one.o" in files
    (folder / "sub" / ".gitignore").unlink()
    (folder / "sub" / ".gitignore").write_text("*.o\n")
    assert found(remote, folder / "sub", only(folder)) == ({b".gitignore"}, [])
