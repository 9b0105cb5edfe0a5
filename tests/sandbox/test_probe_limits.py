"""What the doctor says about limits."""

from __future__ import annotations

import pytest

from execserver.resources.hierarchy import Blocked, Place
from execserver.sandbox.backends import probe_limits


def test_each_limit_that_a_controller_holds_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("/g/a", frozenset({"memory"}), "/g", is_machine_root=False)
    monkeypatch.setattr(probe_limits, "find_place", lambda: place)
    found = {check.name: check for check in probe_limits.check_limits()}
    assert [name for name, check in found.items() if check.works] == ["control-groups", "limit-memory"]
    assert found["limit-cpu"].blocker == "the cpu controller is not delegated to /g/a"
    assert "Delegate=yes" in found["limit-cpu"].cure


def test_where_no_group_can_be_made_each_line_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def blocked() -> Place:
        raise Blocked("read-only here", "do that")

    monkeypatch.setattr(probe_limits, "find_place", blocked)
    checks = probe_limits.check_limits()
    assert [(check.works, check.blocker, check.cure) for check in checks] == [
        (False, "read-only here", "do that")
    ] * 4
