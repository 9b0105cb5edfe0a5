from __future__ import annotations

import pytest

from execserver.protocol.error_texts import (
    SHOWN_CHARACTERS,
    kind_of,
    missing_field,
    quoted,
    refuse,
    unknown_variant,
    utf8_fault,
    variant_name,
    wrong_type,
)
from execserver.protocol.errors import InvalidParams


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "null"),
        (True, "boolean `true`"),
        (False, "boolean `false`"),
        (0, "number"),
        (1.5, "number"),
        ("x", 'string "x"'),
        ([], "sequence"),
        ({}, "map"),
    ],
)
def test_kinds_have_the_contracts_names(value: object, kind: str) -> None:
    assert kind_of(value) == kind


def test_texts_are_shown_with_escapes() -> None:
    assert quoted("a\n\"b\\\t\r\0'é\x7f") == '"a\\n\\"b\\\\\\t\\r\\0\'é\\u{7f}"'


def test_a_long_text_is_cut() -> None:
    assert len(quoted("x" * 10**6)) == SHOWN_CHARACTERS + 3
    assert len(unknown_variant("x" * 10**6, ("a",)).message) < SHOWN_CHARACTERS + 60


def test_errors_begin_with_the_contracts_text_and_end_with_the_member() -> None:
    assert (
        wrong_type(5, "a string", "argv[0]").message
        == "invalid type: number, expected a string (in `argv[0]`)"
    )
    assert wrong_type(5, "struct ReadParams").message == "invalid type: number, expected struct ReadParams"
    assert refuse("Invalid padding", "chunk").message == "Invalid padding (in `chunk`)"
    assert missing_field("cwd").message == "missing field `cwd`"


@pytest.mark.parametrize(
    ("accepted", "wanted"),
    [(("a",), "`a`"), (("a", "b"), "`a` or `b`"), (("a", "b", "c"), "one of `a`, `b`, `c`")],
)
def test_accepted_names_are_listed(accepted: tuple[str, ...], wanted: str) -> None:
    assert unknown_variant("x", accepted).message == f"unknown variant `x`, expected {wanted}"


@pytest.mark.parametrize("value", ["a", {"a": None}])
def test_a_name_may_stand_in_an_object(value: object) -> None:
    assert variant_name(value, ("a", "b")) == "a"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "invalid type: null, expected string or map"),
        ({}, "invalid value: map, expected map with a single key"),
        ({"a": None, "b": None}, "invalid value: map, expected map with a single key"),
        ({"a": 1}, "invalid type: number, expected unit"),
        ({"x": 1}, "unknown variant `x`, expected `a` or `b`"),
    ],
)
def test_another_spelling_of_a_name_is_refused(value: object, message: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        variant_name(value, ("a", "b"))
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xff\xfe", "invalid utf-8 sequence of 1 bytes from index 0"),
        (b"ab\xe2\x82", "incomplete utf-8 byte sequence from index 2"),
        (b"a\xe2\x28", "invalid utf-8 sequence of 1 bytes from index 1"),
    ],
)
def test_what_is_no_utf8_is_told_in_the_contracts_words(content: bytes, text: str) -> None:
    with pytest.raises(UnicodeDecodeError) as raised:
        content.decode()
    assert utf8_fault(raised.value) == text
