"""What a copy says of devices, FIFOs and sockets."""

from __future__ import annotations

import pytest

from execserver.box.trees.nodes import TooLarge
from execserver.box.trees.others import Others


def test_a_listing_of_others_without_end_is_given_up_and_none_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("execserver.box.trees.others.MAX_NODES", 3)
    others = Others()
    for _ in range(3):
        others.add(b"/x\x1b\n")
    with pytest.raises(TooLarge, match="more than 3 devices, FIFOs and sockets"):
        others.add(b"/y")
    assert others.text == "left out: /x\\x1b\\x0a, and 3 more that are no files, folders or links"
