"""Peers that go on in another program: equal to what they were, and no more allowed."""

from __future__ import annotations

from execserver.access.handed_over import pack, unpacked
from execserver.access.identity import NOBODY, Grant, Identity
from execserver.access.tokens.holder import Holder


def test_an_identity_is_equal() -> None:
    for identity in (
        NOBODY,
        Identity("uid", "0"),
        Identity("jwt", "me", Grant(("/a", "/b"), True, False)),
        Identity("token", "me", Grant(None, False, True)),
    ):
        found = unpacked(pack(identity), None)
        assert (found, found.label) == (identity, identity.name)


def test_the_holder_of_a_token_counts_no_more_where_no_tokens_are_taken() -> None:
    holder = Holder("id label", Grant(("/a",)), lambda now: None, ("id", ("l-label",)))
    found = unpacked(pack(holder), None)
    assert isinstance(found, Holder)
    assert (found.name, found.grant) == (holder.name, holder.grant)
    assert found.label is None
    assert found.lapsed(0.0) == "this server takes no execserver tokens any more"
