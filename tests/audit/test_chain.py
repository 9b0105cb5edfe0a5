"""The chain of an audit log: what it shows of any change, and what its records hold at most."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.audit.chain import GENESIS, MAX_LINE_BYTES, Broken, Checker, bounded, digest_of, line_of
from execserver.audit.reading import verify
from execserver.audit.segments import Segments


def chain(count: int) -> list[bytes]:
    lines, head = [], GENESIS
    for number in range(1, count + 1):
        lines.append(line_of(number, "2030-01-01T00:00:00.000Z", "start", {"pid": number}, head))
        head = digest_of(lines[-1])
    return lines


def follow(lines: list[bytes]) -> Checker:
    checker = Checker()
    for line in lines:
        checker.follow(line)
    return checker


def test_a_chain_holds_and_its_head_is_the_digest_of_the_newest_line() -> None:
    lines = chain(5)
    checker = follow(lines)
    assert (checker.first, checker.number, checker.head) == (1, 5, digest_of(lines[-1]))
    assert json.loads(lines[1]) == {
        "n": 2,
        "at": "2030-01-01T00:00:00.000Z",
        "event": "start",
        "pid": 2,
        "prev": digest_of(lines[0]),
    }


def test_a_log_may_begin_later_but_not_twice() -> None:
    lines = chain(5)
    assert follow(lines[2:]).first == 3
    with pytest.raises(Broken, match="not the one that it followed"):
        follow([*lines, chain(1)[0]])


@given(at=st.integers(0, 3), what=st.data())
def test_no_byte_can_be_changed(at: int, what: st.DataObject) -> None:
    lines = chain(5)
    place = what.draw(st.integers(0, len(lines[at]) - 1))
    other = what.draw(st.integers(0, 255).filter(lambda byte: byte != lines[at][place]))
    lines[at] = lines[at][:place] + bytes([other]) + lines[at][place + 1 :]
    with pytest.raises(Broken):
        follow(lines)


@pytest.mark.parametrize(
    "changed",
    [
        lambda lines: [lines[0], *lines[2:]],  # one removed
        lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
        lambda lines: [*lines[:2], lines[1], *lines[2:]],
        lambda lines: [*lines[:2], line_of(3, "", "start", {}, digest_of(lines[1])), *lines[2:]],
        lambda lines: [line_of(1, "", "x", {}, "1" * 64), *lines[1:]],
        lambda lines: [b'{"n":1}'],
        lambda lines: [b'{"n":1,"prev":"' + b"0" * 64 + b'"}'],
        lambda lines: [b'[1,"prev":"' + b"0" * 64 + b'"}'],
    ],
)
def test_no_line_can_be_removed_moved_added_or_made_up(changed: object) -> None:
    with pytest.raises(Broken):
        follow(changed(chain(5)))  # type: ignore[operator]


def test_the_same_number_twice_is_noticed_though_the_digest_is_right() -> None:
    lines = chain(2)
    with pytest.raises(Broken, match="its number is 2, behind 2"):
        follow([*lines, line_of(2, "", "x", {}, digest_of(lines[1]))])


def test_words_cannot_forge_a_record() -> None:
    """A command whose words look like the end of a line and the next record stays one text."""
    evil = f'x","prev":"{"0" * 64}"}}\n{{"n":2,"at":"","event":"begin","prev":"{"0" * 64}"}}'
    line = line_of(1, "t", "start", {"argv": ["sh", evil, "\x00\x1b[2J\ud800"]}, GENESIS)
    assert b"\n" not in line
    record = Checker().follow(line)
    assert record["argv"] == ["sh", evil, "\x00\x1b[2J\ud800"]


@given(
    st.lists(st.text(max_size=5000), max_size=100),
    st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=9000), max_size=2),
)
def test_a_record_has_a_bounded_length_and_says_what_was_cut(argv: list[str], more: dict[str, str]) -> None:
    line = line_of(1, "t", "start", {"argv": argv, **more}, GENESIS)
    assert len(line) < MAX_LINE_BYTES
    record = Checker().follow(line)
    words = record["argv"]
    assert isinstance(words, list)
    if len(argv) > 64:
        assert words[-1] == f"... ({len(argv)} items)"
    for word, given_word in zip(words[:64], argv, strict=False):
        assert word == given_word or word.endswith(f"... ({len(given_word)} characters)")


_TEXTS = st.integers(2046, 2050).map(lambda length: "x" * length) | st.text(max_size=9) | st.just("\ud800")
_WORDS = _TEXTS | st.integers() | st.lists(_TEXTS, max_size=2)
_MEMBERS = _WORDS | st.none() | st.tuples(_TEXTS) | st.dictionaries(st.just("a"), _TEXTS)


@given(
    st.dictionaries(st.sampled_from(["n", "a", "b"]), _MEMBERS),
    st.integers(63, 66).flatmap(lambda count: st.lists(_WORDS, min_size=count, max_size=count)),
)
def test_a_record_is_the_same_whether_it_had_to_be_looked_at_for_what_to_cut(
    members: dict[str, object], words: list[object]
) -> None:
    for given_members in (members, {**members, "argv": words}):
        line = line_of(7, "t", "start", given_members, GENESIS)
        whole = bounded({"n": 7, "at": "t", "event": "start", **given_members}, 2048, 64)
        expected = json.dumps(whole, separators=(",", ":"))
        if len(expected) < MAX_LINE_BYTES - 100:
            assert line.decode() == f'{expected[:-1]},"prev":"{GENESIS}"}}'


@pytest.mark.parametrize("count", [63, 64, 65, 5000])
@pytest.mark.parametrize("character", ["\U0001f600", "\ud800", "\x00"])
def test_words_of_the_longest_characters_make_no_line_that_breaks_the_log(
    character: str, count: int, tmp_path: Path
) -> None:
    """What a reader does not take would end the chain there, and the next start with it."""
    words = [character * 5000] * count
    segments = Segments(str(tmp_path / "audit"))
    line = line_of(1, "t", "refusal", {"argv": words, "command": words, "path": character * 9000}, GENESIS)
    segments.append(line)
    segments.close()
    assert verify(str(tmp_path / "audit")).head == digest_of(line)
    again = Segments(str(tmp_path / "audit"))
    assert (again.end.number, again.end.head) == (1, digest_of(line))
    again.close()


def test_of_a_record_with_too_many_members_at_least_the_event_is_told() -> None:
    members = {f"m{number}": "\x00" * 100 for number in range(1000)}
    record = Checker().follow(line_of(1, "t", "start", members, GENESIS))
    assert record == {"n": 1, "at": "t", "event": "start", "cut": True, "prev": GENESIS}
