from __future__ import annotations

import json

import pytest

from execserver.sandbox.backends.bwrap import Bwrap
from execserver.sandbox.backends.report import Check, Report, from_members


@pytest.mark.parametrize(
    "bwrap", [None, Bwrap(b"/opt/\xff/bwrap", (1, 2, 3, 1 << 62), True, "0.11.0", True, True)]
)
def test_a_report_comes_back_from_json_the_same(bwrap: Bwrap | None) -> None:
    report = Report(
        kernel="6.1.0",
        uid=1000,
        native=True,
        mounts="old",
        user_namespace=False,
        seccomp=True,
        landlock_abi=5,
        bwrap=bwrap,
        checks=(Check("a", True, "fine"), Check("b", False, "", "blocked", "cure")),
    )
    again = from_members(json.loads(json.dumps(report.members())))
    assert again.members() == report.members()
    assert (again.bwrap is None) == (bwrap is None)
    if bwrap is not None and again.bwrap is not None:
        assert again.bwrap.path == bwrap.path
        assert again.bwrap.identity == bwrap.identity


def test_a_check_that_was_not_made_does_not_work() -> None:
    check = Report().check("native-view")
    assert not check.works
    assert "native-view was not probed" in check.blocker


@pytest.mark.parametrize("members", [{}, {"bubblewrap": None}, {"bubblewrap": {}, "kernel": "x"}])
def test_anything_else_is_no_report(members: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_members(members)
