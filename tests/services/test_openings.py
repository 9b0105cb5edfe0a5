"""Ids that are reserved while something is being opened."""

from __future__ import annotations

import pytest

from execserver.protocol.errors import InvalidRequest
from execserver.services.openings import Openings


def test_an_id_is_reserved_until_it_is_released() -> None:
    openings = Openings("port")
    one = openings.reserve("a")
    assert ("a" in openings, len(openings)) == (True, 1)
    openings.release(one)
    assert ("a" in openings, len(openings)) == (False, 0)


def test_what_was_cancelled_is_refused_when_it_goes_on() -> None:
    openings = Openings("port")
    one, other = openings.reserve("a"), openings.reserve("b")
    openings.cancel("a")
    openings.cancel("unknown")
    with pytest.raises(InvalidRequest, match="port a was closed before it was open"):
        openings.check(one)
    openings.check(other)
    openings.cancel_all()
    with pytest.raises(InvalidRequest, match="port b was closed before it was open"):
        openings.check(other)


def test_a_request_that_never_gets_its_turn_leaves_nothing_reserved() -> None:
    openings = Openings("port")
    one = openings.reserve("a")
    del one
    assert ("a" in openings, len(openings)) == (False, 0)
