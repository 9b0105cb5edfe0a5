"""The keys for the client, however the typing is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.box.commands.escapes import Asked, Escapes


@pytest.mark.parametrize(
    ("typed", "sent", "asked"),
    [
        (b"~.", b"", [Asked.END]),
        (b"ls\r~.", b"ls\r", [Asked.END]),
        (b"ls ~.", b"ls ~.", []),
        (b"~~", b"~", []),
        (b"~~.", b"~.", []),
        (b"\r~?~dx", b"\rx", [Asked.HELP, Asked.DETACH]),
        (b"~x", b"~x", []),
        (b"~\r~.", b"~\r", [Asked.END]),
        (b"cd ~/x\r", b"cd ~/x\r", []),
        (b"a\n~.", b"a\n", [Asked.END]),
    ],
)
def test_keys_for_the_client_do_not_reach_the_box(typed: bytes, sent: bytes, asked: list[Asked]) -> None:
    assert Escapes().feed(typed) == (sent, asked)


@given(st.lists(st.binary(max_size=4).map(lambda data: bytes(b"~.\rad?"[each % 6] for each in data))))
def test_pieces_change_nothing(pieces: list[bytes]) -> None:
    whole, cut = Escapes(), Escapes()
    expected = whole.feed(b"".join(pieces))
    parts = [cut.feed(piece) for piece in pieces]
    assert (b"".join(sent for sent, _ in parts), [one for _, asked in parts for one in asked]) == expected
