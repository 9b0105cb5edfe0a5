"""Sandbox plans in a few words, for tests."""

from __future__ import annotations

import pytest

from execserver.sandbox.plan import PlanRefused, SandboxPlan
from tests.sandbox.policies import plan
from tests.support.fake_host import FakeHost

ROOT_READ = ("root", "read")


def lines(made: SandboxPlan) -> list[str]:
    """Return the mounts as words: kind and path."""
    return [f"{mount.kind} {mount.path.decode()}" for mount in made.mounts]


def missing(made: SandboxPlan) -> list[str]:
    return [missing.path.decode() for missing in made.missing]


def refusal(host: FakeHost, *rules: tuple[str, str]) -> str:
    with pytest.raises(PlanRefused) as caught:
        plan(host, *rules)
    return str(caught.value)


def write_only(made: SandboxPlan) -> SandboxPlan:
    """Leave out the metadata names, which most tests are not about."""
    names = (b"/.git", b"/.agents", b"/.codex")
    kept = tuple(mount for mount in made.mounts if not mount.path.endswith(names))
    left = tuple(item for item in made.missing if not item.metadata)
    return SandboxPlan(made.root, mounts=kept, missing=left)
