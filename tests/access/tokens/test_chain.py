"""The chain of a token: whoever has one can narrow it, and do nothing else to it."""

from __future__ import annotations

import base64
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.access.tokens.caveats import BadCaveat, caveats
from execserver.access.tokens.chain import (
    MAX_CAVEATS,
    MAX_TOKEN_BYTES,
    BadToken,
    Token,
    genuine,
    minted,
    narrowed,
    parsed,
)

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
ID = "0123456789abcdef"
CAVEAT = st.sampled_from(
    ["r", "n", "u-5", "u-6", "l-a", *caveats(roots=[b"/a"]), *caveats(roots=[b"/b", b"/c"])]
)
CAVEATS = st.lists(CAVEAT, max_size=5)


@given(CAVEATS, CAVEATS)
def test_a_narrowed_token_is_genuine_and_keeps_every_caveat(first: list[str], more: list[str]) -> None:
    token = narrowed(minted(KEY, ID, first), more)
    assert token == minted(KEY, ID, [*first, *more])
    assert parsed(token.text) == token
    assert token.caveats == (*first, *more)
    assert genuine(KEY, token)
    assert not genuine(OTHER_KEY, token)


@given(CAVEATS, st.data())
def test_no_other_list_of_caveats_goes_with_a_mac(given: list[str], data: st.DataObject) -> None:
    token = minted(KEY, ID, given)
    other = data.draw(CAVEATS | st.permutations(given) | st.integers(0, 4).map(lambda cut: given[:cut]))
    assert genuine(KEY, token._replace(caveats=tuple(other))) == (list(other) == given)


def test_the_id_belongs_to_the_chain() -> None:
    token = minted(KEY, ID, ["r"])
    assert not genuine(KEY, token._replace(id="f" * 16))


def test_cutting_a_caveat_and_going_on_from_the_old_mac_does_not_help() -> None:
    token = minted(KEY, ID, ["r", "u-5"])
    for left in ((), ("r",), ("u-5",)):
        cut = Token(ID, left, token.mac)
        assert not genuine(KEY, cut)
        assert not genuine(KEY, narrowed(cut, ["n"]))


def test_two_caveats_are_not_one_longer_caveat() -> None:
    token = minted(KEY, ID, ["l-a", "n"])
    joined = Token(ID, ("l-an",), token.mac)
    assert not genuine(KEY, joined)
    # Nor does a caveat that looks like the beginning of a chain start one.
    forged = hmac.digest(base64.urlsafe_b64decode(token.mac + "="), f"xst1.{ID}".encode(), "sha256")
    mac = base64.urlsafe_b64encode(forged).decode().rstrip("=")
    assert not genuine(KEY, Token(ID, (), mac))


def test_every_changed_character_is_noticed() -> None:
    text = minted(KEY, ID, ["l-a", "u-5"]).text
    for at in range(len(text)):
        changed = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
        assert not accepted(changed), at


def test_the_last_character_has_one_spelling() -> None:
    """Base64 of 32 bytes leaves two bits of it unused."""
    text = minted(KEY, ID, []).text
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    assert [letter for letter in letters if accepted(text[:-1] + letter)] == [text[-1]]


def test_a_token_cut_anywhere_is_none() -> None:
    text = minted(KEY, ID, ["l-a", "u-5", "n"]).text
    assert not any(accepted(text[:length]) for length in range(len(text)))
    assert not any(accepted(text[start:]) for start in range(1, len(text)))


@given(st.text(max_size=80) | st.from_regex(r"xst1(\.[A-Za-z0-9_-]{0,50}){0,5}", fullmatch=True))
def test_no_made_up_text_is_genuine(text: str) -> None:
    assert not accepted(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "xst1",
        f"xst1.{ID}",
        f"xst2.{ID}.{'A' * 43}",
        f"xst1.{ID.upper()}.{'A' * 43}",
        f"xst1.{ID}..{'A' * 43}",
        f"xst1.{ID}.r.{'A' * 42}",
        f"xst1.{ID}.r.{'A' * 43}\n",
        f" xst1.{ID}.{'A' * 43}",
        f"xst1.{ID}.r r.{'A' * 43}",
        f"xst1.{ID}.é.{'A' * 43}",
        f"xst1.{ID}{'.r' * (MAX_CAVEATS + 1)}.{'A' * 43}",
        f"xst1.{ID}.{'a' * MAX_TOKEN_BYTES}.{'A' * 43}",
        "." * MAX_TOKEN_BYTES,
    ],
)
def test_what_does_not_have_the_form_is_refused(text: str) -> None:
    with pytest.raises(BadToken):
        parsed(text)


def test_a_token_does_not_grow_beyond_its_bounds() -> None:
    token = minted(KEY, ID, ["r"] * MAX_CAVEATS)
    assert accepted(token.text)
    with pytest.raises(BadCaveat):
        narrowed(token, ["n"])
    roots = caveats(roots=[b"/" + bytes([97 + number]) * 255 for number in range(16)])
    with pytest.raises(BadCaveat):
        minted(KEY, ID, roots * 3)


def test_a_caveat_that_nobody_understands_is_not_written() -> None:
    with pytest.raises(BadCaveat):
        minted(KEY, ID, ["everything"])
    with pytest.raises(BadCaveat):
        narrowed(minted(KEY, ID, []), ["w"])


def test_a_token_does_not_print_its_secret() -> None:
    token = minted(KEY, ID, ["r"])
    assert token.mac not in repr(token)
    assert token.mac not in f"{token}"


def test_a_key_has_its_length() -> None:
    with pytest.raises(ValueError, match="not a key"):
        minted(b"short", ID, [])


def accepted(text: str) -> bool:
    try:
        return genuine(KEY, parsed(text))
    except BadToken:
        return False
