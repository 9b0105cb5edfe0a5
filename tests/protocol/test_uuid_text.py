"""UUIDs as texts: what is one, and what is wrong with the others; the texts are recorded from 0.169.0."""

from __future__ import annotations

import random
import re
import uuid

import pytest

from execserver.protocol.uuid_text import PATTERN, error_text, version_4

GOOD = "0b6b2b1e-6f0c-4f0e-8f59-1f0c5a3f7a11"
CHARACTER = "invalid character: expected an optional prefix of `urn:uuid:` followed by [0-9a-fA-F-], found "


@pytest.mark.parametrize(
    "text", [GOOD, GOOD.upper(), GOOD.replace("-", ""), f"urn:uuid:{GOOD}", f"{{{GOOD}}}"]
)
def test_every_spelling_is_taken(text: str) -> None:
    assert re.search(PATTERN, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", CHARACTER + "`x` at 1"),
        ("é", CHARACTER + "`é` at 1"),
        ("urn:uuid:zz", CHARACTER + "`z` at 10"),
        (GOOD[:-1] + "z", CHARACTER + "`z` at 36"),
        ("0b6b2b1e-6f0c-4f0e-8f59é1f0c5a3f7a11", CHARACTER + "`é` at 24"),
        ("", "invalid length: expected length 32 for simple format, found 0"),
        ("0192", "invalid length: expected length 32 for simple format, found 4"),
        (GOOD[:-1], "invalid group length in group 4: expected 12, found 11"),
        (GOOD + "a", "invalid group length in group 4: expected 12, found 13"),
        ("0-b-6-b-2", "invalid group length in group 0: expected 8, found 1"),
        ("0b6b2b1e-6f0c4f0e-8f59-1f0c5a3f7a11-", "invalid group length in group 1: expected 4, found 8"),
        ("0b6b2b1e-6f0c", "invalid group count: expected 5, found 2"),
        ("urn:uuid:" + GOOD.replace("-", ""), "invalid group count: expected 5, found 1"),
    ],
)
def test_the_mistake_is_told(text: str, message: str) -> None:
    assert not re.search(PATTERN, text)
    assert error_text(text) == message


def test_a_newline_behind_it_is_a_mistake() -> None:
    assert error_text(GOOD + "\n").startswith(CHARACTER)


def test_a_random_uuid_is_the_one_the_standard_library_makes_of_these_bytes() -> None:
    chance = random.Random(7)
    for data in (bytes(16), b"\xff" * 16, *(chance.randbytes(16) for _ in range(1000))):
        assert version_4(data) == str(uuid.UUID(bytes=data, version=4))
