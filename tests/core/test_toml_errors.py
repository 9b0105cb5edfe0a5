"""Where a TOML text is broken."""

from __future__ import annotations

import tomllib

import pytest

from execserver.core.toml_errors import TomlFault


def fault_of(text: str) -> TomlFault:
    with pytest.raises(tomllib.TOMLDecodeError) as raised:
        tomllib.loads(text)
    return TomlFault(text, str(raised.value))


def test_a_fault_names_its_place_and_marks_it() -> None:
    fault = fault_of("x = 1\nmodel = broken # no quotes\n")
    assert fault.short() == "2:9: string values must be quoted, expected literal string"
    assert fault.with_snippet() == (
        "TOML parse error at line 2, column 9\n"
        "  |\n"
        "2 | model = broken # no quotes\n"
        "  |         ^^^^^^\n"
        "string values must be quoted, expected literal string\n"
    )


def test_a_fault_at_the_end_has_a_place_too() -> None:
    assert fault_of("a = 1\n[b").short() == "2:3: expected ']' at the end of a table declaration"
    assert "1 | a = \n  |     ^\n" in fault_of("a = ").with_snippet()


def test_the_number_of_a_line_may_have_several_digits() -> None:
    assert "\n   |\n12 | b\n   |  ^\n" in fault_of("a = 1" + "\n" * 11 + "b").with_snippet()
