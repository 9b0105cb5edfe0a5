"""Carries out sandbox plans although the files that they name may change meanwhile.

A plan names the objects that were found on the host, and is carried out somewhat later.  If one of them is
gone or has been replaced by then, the sandbox is refused and nothing runs.  To find out whether that was the
reason, plan again: if the policy gives the same plan, it would only fail again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_ATTEMPTS = 5  # files that change faster than this are not worth waiting for: the client gets an error

Plan = TypeVar("Plan")
Result = TypeVar("Result")


class SandboxNotMade(Exception):
    """A sandbox could not be made as planned; the message says why, and nothing runs."""


class StalePlan(SandboxNotMade):
    """Every plan was out of date when it was carried out."""


def with_current_plan(plan: Plan, make_anew: Callable[[], Plan], act: Callable[[Plan], Result]) -> Result:
    """Return what `act` returns for a plan, or for a new plan if this one was out of date.

    Raises what both callables raise, SandboxNotMade if planning again gives the same plan, and StalePlan if
    every attempt met another change.
    """
    for _ in range(_ATTEMPTS):
        try:
            return act(plan)
        except SandboxNotMade:
            failed, plan = plan, make_anew()
            if plan == failed:
                raise
    raise StalePlan("the files it is about keep changing")
