"""Rules of `.gitignore` against the real git, on many lines and paths."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from execserver.core.ignore_rules import MAX_PATTERN, TooMuch, rules_in
from tests.support.git import git, needs_git

LINES = (
    *(b"a", b"*", b"**", b"/a", b"a/", b"a/b", b"/*/b", b"*.b", b"!a", b"\\!a", b"\\#a", b"#a", b"a\\", b""),
    *(b"a/**", b"**/b", b"a/**/b", b"**/a/**/b", b"a**/b", b"**a/b", b"a/**b", b"/**/", b"**/", b"a//", b"/"),
    *(
        b"[ab]",
        b"[!a]",
        b"[^]a]",
        b"[]a]",
        b"[a-",
        b"[z-a]",
        b"[a-]",
        b"[[:alpha:]]",
        b"[[:nothing:]]",
        b"[[:a]",
    ),
    *(
        b"a ",
        b"a\\ ",
        b"a\\  ",
        b" a",
        b"a\r",
        b"?",
        b"??",
        b"\\*",
        b"\\\\",
        b"[\\]]",
        b"a?b",
        b"/a*/**/*b*",
        b"\xff",
    ),
)
TOKENS = (
    b"a",
    b"b",
    b"*",
    b"**",
    b"**/",
    b"/**",
    b"/",
    b"?",
    b"[ab]",
    b"[!a]",
    b"\\*",
    b" ",
    b".",
    b"*.",
    b"[a-",
)
NAMES = (
    b"a",
    b"b",
    b"ab",
    b"a.b",
    b"!a",
    b"#a",
    b" a",
    b"a ",
    b"*",
    b"\\",
    b"]",
    b"-",
    b"\xff",
    b".h",
    b"\xc3\xa9",
)


def lines(seed: int, count: int) -> list[bytes]:
    chosen = random.Random(seed)
    made = [b"".join(chosen.choices(TOKENS, k=chosen.randint(2, 5))) for _ in range(count)]
    return [*LINES, *made]


def paths(seed: int) -> list[bytes]:
    chosen = random.Random(seed)
    made = (b"/".join(chosen.choices(NAMES, k=chosen.randint(1, 4))) for _ in range(60))
    return sorted({*NAMES, b"a/b", b"a/ab/b", b"a/a/b", *made})


def is_ignored(content: bytes, path: bytes) -> bool:
    """Tell what the rules of one file say about a path that does not end in a directory."""
    names, rules = path.split(b"/"), list(rules_in(content))
    for end in range(1, len(names) + 1):
        found = b"/".join(names[:end])
        rule = next((each for each in rules if each.matches(found, names[end - 1], end < len(names))), None)
        if rule is not None and rule.excludes:
            return True
    return False


@needs_git
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
def test_each_line_means_what_it_means_to_git(tmp_path: Path, seed: int) -> None:
    git(tmp_path, "init", "-q")
    expected: set[bytes] = set()
    asked: list[bytes] = []
    for number, line in enumerate(lines(seed, 60)):
        folder = tmp_path / f"{number:03}"
        folder.mkdir()
        (folder / ".gitignore").write_bytes(line + b"\n")
        for path in paths(seed):
            full = b"%03d/%s" % (number, path)
            asked.append(full)
            expected |= {full} if is_ignored(line + b"\n", path) else set()
    told = git(tmp_path, "check-ignore", "-z", "--no-index", "--stdin", given=b"\0".join(asked))
    ignored = set(told.split(b"\0")) - {b""}
    differing = [(lines(seed, 60)[int(path[:3])], path[4:], path in ignored) for path in ignored ^ expected]
    assert differing == []
    assert len(expected) > 500


def test_a_later_line_counts_more() -> None:
    assert not is_ignored(b"*.log\n!keep.log\n", b"keep.log")
    assert is_ignored(b"!keep.log\n*.log\n", b"keep.log")
    assert is_ignored(
        b"\xef\xbb\xbf*.log\r\nx\0y\n", b"x"
    )  # a byte order mark, CRLF, and the end of a line in C
    assert is_ignored(b"build/\n!build/keep\n", b"build/keep")


def test_lines_beyond_the_limits_are_refused() -> None:
    with pytest.raises(TooMuch, match="wildcards"):
        list(rules_in(b"*a" * (MAX_PATTERN // 2 + 1)))
    with pytest.raises(TooMuch, match="a line has more"):
        list(rules_in(b"a" * 5000))


@pytest.mark.parametrize(
    "line", [b"*a" * 127 + b"b", b"a/**/" + b"*/" * 120 + b"b", b"**/*a" * 40 + b"b", b"**/a/" * 50 + b"b"]
)
def test_no_pattern_explodes(line: bytes) -> None:
    (rule,) = rules_in(line)
    before = time.process_time()
    for path in (b"a" * 255, b"/".join([b"a" * 255] * 15), b"/".join([b"a"] * 2000)):
        assert not rule.matches(path, path.rpartition(b"/")[2], is_directory=False)
    assert time.process_time() - before < 5.0  # some milliseconds; going back would take years
