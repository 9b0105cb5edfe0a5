from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.sandbox.policy.globs import (
    ALTERNATIVES_LIMIT,
    GlobError,
    compile_glob,
    compile_patterns,
    escape,
    join_pattern,
)
from tests.sandbox.policy_model import regex


def matches(pattern: str, path: str) -> bool:
    found = compile_patterns([pattern.encode()]).deepest(path.encode("utf-8", "surrogateescape"))
    return found is not None and found[0] == path.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/a/b", "/a/b"),
        ("/a/*.env", "/a/.env"),
        ("/a/*.env", "/a/x.env"),
        ("/a/x*", "/a/x"),
        ("/a/x*y*z", "/a/xyyz"),
        ("/a/?", "/a/é"),
        ("/a/?", "/a/\udcff"),
        ("/**/x", "/x"),
        ("/**/x", "/a/b/x"),
        ("/a/**/b/*.c", "/a/b/x.c"),
        ("/a/**/b/*.c", "/a/1/2/b/x.c"),
        ("/a/**", "/a/b"),
        ("/a/**", "/a/b/c"),
        ("/a/**/**/c", "/a/c"),
        ("/a/[bc]", "/a/c"),
        ("/a/[a-c]x", "/a/bx"),
        ("/a/[!a-c]x", "/a/dx"),
        ("/a/[^a]x", "/a/bx"),
        ("/a/[]]", "/a/]"),
        ("/a/[*]", "/a/*"),
        ("/a/[a-]", "/a/-"),
        ("/a/[b", "/a/[b"),
        ("/a/x[", "/a/x["),
        ("/a/{b,c}.x", "/a/c.x"),
        ("/a/{b,c/d}.x", "/a/c/d.x"),
        ("/a/{b,{c,d}e}", "/a/de"),
        ("/a/{,b}c", "/a/c"),
        ("/a/[{]", "/a/{"),
        ("/a/\\*", "/a/*"),
        ("/a/\\{b\\,c\\}", "/a/{b,c}"),
        ("/a/b,c", "/a/b,c"),
        ("/a//b/./c", "/a/b/c"),
        ("/a/x/../b*", "/a/b"),
        ("/a/é*", "/a/éa"),
    ],
)
def test_a_pattern_matches(pattern: str, path: str) -> None:
    assert matches(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/a/*", "/a/b/c"),
        ("/a/*", "/a"),
        ("/a/?", "/a/bc"),
        ("/a/b?c", "/a/b/c"),
        ("/a/[!x]", "/a//"),
        ("/a/b[/]c", "/a/b/c"),
        ("/a/**", "/a"),
        ("/a/**b", "/a/x/b"),
        ("/a/**/b", "/ab"),
        ("/a/[a-c]", "/a/d"),
        ("/a/[!a]", "/a/a"),
        ("/a/{b,c}", "/a/{b,c}"),
        ("/a/\\*", "/a/b"),
        ("/a/b", "/a/B"),
        ("/a/b", "/c/a/b"),
        ("/a/*.env", "/a/env"),
    ],
)
def test_a_pattern_does_not_match(pattern: str, path: str) -> None:
    assert not matches(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a/*", "not absolute"),
        ("/", "no name in it"),
        ("/a/..", "no name in it"),
        ("/a/{b", "a `{` is not closed"),
        ("/a/b}", "a `}` closes nothing"),
        ("/a/b\\", "it ends with a backslash"),
        ("/a/[c-a]", "a range is the wrong way round"),
        ("/" + "{a,b}" * 9, "too many alternatives"),
    ],
)
def test_a_pattern_that_is_not_well_formed_is_an_error(pattern: str, why: str) -> None:
    with pytest.raises(GlobError, match=re.escape(why)):
        compile_glob(pattern.encode())


def test_as_many_alternatives_as_allowed_are_told_apart() -> None:
    pattern = "/{" + ",".join(f"x{number}" for number in range(ALTERNATIVES_LIMIT)) + "}"
    assert matches(pattern, "/x0")
    assert matches(pattern, f"/x{ALTERNATIVES_LIMIT - 1}")
    assert not matches(pattern, f"/x{ALTERNATIVES_LIMIT}")


def test_the_deepest_part_that_matches_decides() -> None:
    patterns = compile_patterns([b"/a/*", b"/a/b/**/d", b"/z"])
    assert patterns.deepest(b"/a/b/c") == (b"/a/b", b"/a/*")
    assert patterns.deepest(b"/a/b/c/d/e") == (b"/a/b/c/d", b"/a/b/**/d")
    assert patterns.deepest(b"/") is None
    assert patterns.deepest(b"/a") is None
    assert patterns
    assert not compile_patterns([])


def test_the_literal_directory_of_a_pattern_is_known() -> None:
    prefixes = {
        pattern: compile_glob(pattern)[0].prefix
        for pattern in (b"/a/b/*.c", b"/**/x", b"/a/b", b"/a/\\*/b?", b"/a/[x/b")
    }
    assert prefixes == {
        b"/a/b/*.c": b"/a/b",
        b"/**/x": b"/",
        b"/a/b": b"/a",
        b"/a/\\*/b?": b"/a/*",
        b"/a/[x/b": b"/a/[x",
    }


def test_a_pattern_moves_to_another_directory() -> None:
    (glob,) = compile_glob(b"/a*\\*/../b/*.c")
    moved = glob.moved(b"/x[y]")
    assert (moved.prefix, moved.text) == (b"/x[y]", b"/x\\[y\\]/*.c")
    assert compile_patterns([moved.text]).deepest(b"/x[y]/1.c") == (b"/x[y]/1.c", moved.text)


@given(st.text("ab*?[]{},\\!-é\udcff", min_size=1, max_size=6).filter(lambda name: name not in (".", "..")))
def test_an_escaped_name_matches_only_itself(name: str) -> None:
    path = b"/x/" + name.encode("utf-8", "surrogateescape")
    assert compile_patterns([escape(path)]).deepest(path) == (path, escape(path))
    assert compile_patterns([escape(path)]).deepest(b"/x/abc") is None or name == "abc"
    (below,) = compile_glob(join_pattern(path, b"*"))
    assert below.prefix == path


_names = st.one_of(st.just("**"), st.text("ab*?", min_size=1, max_size=4))


@given(
    st.lists(_names, min_size=1, max_size=4),
    st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=4),
)
def test_matching_is_that_of_the_translation_to_a_regular_expression(
    names: list[str], path: list[str]
) -> None:
    pattern, asked = "/" + "/".join(names), "/" + "/".join(path)
    assert matches(pattern, asked) == bool(regex(pattern).fullmatch(asked))


def test_matching_takes_no_exponential_time() -> None:
    assert not matches("/" + "a*" * 60 + "b", "/" + "a" * 250)
    assert not matches("/" + "**/a/" * 30 + "b", "/a" * 100)
