"""Plans that are out of date when they are carried out: made anew, a number of times."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from execserver.services.confinement.current_plan import SandboxNotMade, StalePlan, with_current_plan


def test_a_plan_that_works_is_made_once() -> None:
    assert with_current_plan(1, refuse_to_plan, lambda plan: plan * 10) == 10


def refuse_to_plan() -> int:
    raise AssertionError("no plan is needed")


def test_a_plan_that_is_out_of_date_is_made_anew() -> None:
    def act(plan: int) -> str:
        if plan < 3:
            raise SandboxNotMade("it is not what it was")
        return f"made by {plan}"

    plans = iter([2, 3])
    assert with_current_plan(1, lambda: next(plans), act) == "made by 3"


def test_a_plan_that_is_still_the_same_would_fail_again() -> None:
    tried = []

    def act(plan: int) -> None:
        tried.append(plan)
        raise SandboxNotMade("no namespaces")

    with pytest.raises(SandboxNotMade, match="no namespaces") as caught:
        with_current_plan(1, lambda: 1, act)
    assert tried == [1]
    assert not isinstance(caught.value, StalePlan)


def test_files_that_keep_changing_end_the_attempts() -> None:
    def numbers() -> Iterator[int]:
        number = 1
        while True:
            number += 1
            yield number

    tried = []

    def act(plan: int) -> None:
        tried.append(plan)
        raise SandboxNotMade("it is not what it was")

    plans = numbers()
    with pytest.raises(StalePlan, match="keep changing"):
        with_current_plan(1, lambda: next(plans), act)
    assert tried == [1, 2, 3, 4, 5]


def test_other_failures_and_those_of_planning_are_the_callers() -> None:
    def act(plan: int) -> None:
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        with_current_plan(1, refuse_to_plan, act)

    def stale(plan: int) -> None:
        raise SandboxNotMade("stale")

    with pytest.raises(AssertionError):
        with_current_plan(1, refuse_to_plan, stale)
