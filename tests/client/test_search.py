"""Searches for lines, with the client and a real server."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from execserver.client import ExecServerClient, InvalidParamsError
from execserver.protocol.files import FsWalkError
from execserver.protocol.trees import FsSearchMatch
from tests.client.test_file_changes import only
from tests.support.waiting import wait_until

Found = list[tuple[str, int, int, str]]


def lines(remote: ExecServerClient, root: Path, pattern: str, **options: object) -> Found:
    """Return path, line, column and text of all matches, errors as `!` and their text."""
    found: Found = []
    for each in remote.files.search(root, pattern, **options):  # type: ignore[arg-type]
        below = os.path.relpath(os.fsdecode(each.path.native()), root)
        if isinstance(each, FsSearchMatch):
            found.append((below, each.line, each.column, each.text))
        else:
            found.append((below, 0, 0, "!" + each.message))
    return found


@pytest.fixture
def tree(folder: Path) -> Path:
    """A tree with text, and with what is no text."""
    root = folder / "tree"
    (root / "src").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "src" / "one.py").write_text("import os\n\ndef Find(a):\n    pass\n")
    (root / "src" / "two.txt").write_bytes(b"\xff find\n")
    (root / "binary").write_bytes(b"find\0find")
    (root / "empty").touch()
    (root / ".git" / "config").write_text("find")
    (root / "link").symlink_to("src/one.py")
    os.mkfifo(root / "fifo")
    return root


def test_lines_are_found(remote: ExecServerClient, tree: Path) -> None:
    one, two = ("src/one.py", 3, 5, "def Find(a):"), ("src/two.txt", 1, 3, "\ufffd find")
    assert lines(remote, tree, "find") == [two]
    assert lines(remote, tree, "find", ignore_case=True) == [one, two]
    assert lines(remote, tree, "d(.)", include="**/*.py") == [("src/one.py", 3, 1, "def Find(a):")]
    assert lines(remote, tree, "d(a)", literal=True) == [("src/one.py", 3, 8, "def Find(a):")]
    assert lines(remote, tree, "find", hidden=True) == [(".git/config", 1, 1, "find"), two]
    assert lines(remote, tree / "src" / "one.py", "^import") == [(".", 1, 1, "import os")]


def test_matches_come_in_pages_and_are_bounded(remote: ExecServerClient, folder: Path) -> None:
    for number in range(3):
        (folder / f"{number}").write_text("x\n" * 600)
    assert lines(remote, folder, "x") == [(f"{n}", line, 1, "x") for n in range(3) for line in range(1, 601)]
    (folder / "0").write_text("x" * 5000 + "\n")
    (folder / "1").write_text("x\n" * 1200)
    with open(folder / "2", "wb") as file:
        file.write(b"x\n" * 8192)
        file.truncate(20 * 1024 * 1024)
    found = lines(remote, folder, "x")
    assert len(found[0][3]) == 1024
    assert len(found) == 1003
    assert [text for *_, text in found if text.startswith("!")] == [
        "!only the first 1000 lines that match are told",
        "!files of more than 16777216 bytes are not searched",
    ]


def test_a_malformed_pattern_is_refused(remote: ExecServerClient, tree: Path) -> None:
    for pattern in ("(", "a" * 5000, "", "(?P<n>a)(?P<n>b)"):
        with pytest.raises(InvalidParamsError):
            lines(remote, tree, pattern)
    with pytest.raises(InvalidParamsError, match="pattern"):
        lines(remote, tree, "a", include="/x")


def searchers() -> list[str]:
    """Return the pids of all searchers."""
    found = []
    for each in os.listdir("/proc"):
        try:
            words = Path("/proc", each, "cmdline").read_bytes() if each.isdigit() else b""
            if b"--execserver-search-lines" in words and os.getpgid(int(each)) == int(each):
                found.append(each)
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def test_a_pattern_that_explodes_harms_nobody(remote: ExecServerClient, folder: Path) -> None:
    (folder / "a").write_text("a" * 40 + "b")
    (folder / "c").write_text("xc\n")
    before = time.monotonic()
    found = lines(remote, folder, "(a+)+$|xc")
    assert found == [("c", 1, 1, "xc"), ("a", 0, 0, "!the pattern takes too long here")]
    assert time.monotonic() - before < 30
    assert lines(remote, folder, "xc") == [("c", 1, 1, "xc")]
    wait_until(lambda: not searchers(), 10.0)


def test_a_sandbox_holds_for_searches(remote: ExecServerClient, tmp_path: Path) -> None:
    report = remote.environment_sandbox()
    if not report.native:
        blockers = [f"{each.name}: {each.blocker}" for each in report.checks if not each.works]
        pytest.skip(f"no sandbox root can be made here: {'; '.join(blockers)}")
    folder = tmp_path / "in"
    (folder / "hidden").mkdir(parents=True)
    (folder / "kept").write_text("a word")
    (folder / "hidden" / "secret").write_text("a secret word")
    (folder / "way").symlink_to("hidden/secret")
    found = list(remote.files.search(folder, "word", sandbox=only(folder)))
    assert [each.text for each in found if not isinstance(each, FsWalkError)] == ["a word"]
    for place in ("way", "hidden/secret"):
        with pytest.raises(Exception, match="os error"):
            list(remote.files.search(folder / place, "word", sandbox=only(folder)))
