"""One text has one meaning: what is read of a token, and what is not."""

from __future__ import annotations

import pytest

from execserver.access.jwt_parts import Malformed, decoded, json_object, split
from tests.support.ws_auth import encoded


def test_a_token_has_three_parts_or_is_none() -> None:
    assert split(b"a.b.c") == (b"a.b", b"a", b"b", b"c")
    assert split(b"a.b.c.d").payload == b"b.c"  # which is no base64url then
    for text in (b"", b"a", b"a.b"):
        with pytest.raises(Malformed):
            split(text)


@pytest.mark.parametrize("text", [b"YQ==", b"YR", b"Y", b"Y Q", b"Y.Q", b"Y/8", b"Y+8", b"\xff"])
def test_bytes_have_one_spelling(text: bytes) -> None:
    assert decoded(b"YQ") == b"a"
    with pytest.raises(Malformed):
        decoded(text)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"1", b"{", b'{"a":1}x', b'{"a":1,"a":1}', b'{"a":NaN}', b'{"a":"\xff"}', b"[" * 9000],
)
def test_a_part_is_one_object_without_a_doubt(text: bytes) -> None:
    assert json_object(encoded(b'{"a":[1]}')) == {"a": [1]}
    with pytest.raises(Malformed):
        json_object(encoded(text))
