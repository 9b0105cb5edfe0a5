"""Who is on the other end of a connection: plain values that nobody can change afterwards."""

from __future__ import annotations

import pytest

from execserver.access.identity import NOBODY, Grant, Identity, NotAdmitted


def test_nobody_has_no_name_and_no_grant() -> None:
    assert (NOBODY.way, NOBODY.name, NOBODY.grant) == ("none", "", None)


def test_a_grant_restricts_nothing_unless_it_says_so() -> None:
    assert Grant() == Grant(roots=None, read_only=False, network=True)


def test_an_identity_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Identity("jwt", "a").name = "b"  # type: ignore[misc]


def test_a_refusal_carries_the_body_of_its_answer() -> None:
    assert NotAdmitted("no such token").text == "no such token"
