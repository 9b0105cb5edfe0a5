"""Control groups for tests: where this user may make some."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from execserver.resources.control_group import ControlGroup
from execserver.resources.hierarchy import Blocked, find_place

_numbers = count()


@contextmanager
def a_group() -> Iterator[ControlGroup]:
    """Make a control group, or skip; all in it is killed at the end."""
    try:
        place = find_place()
    except Blocked as blocked:
        pytest.skip(f"no control groups here: {blocked.blocker}")
    group = ControlGroup.make(f"{place.path}/test-{os.getpid()}-{next(_numbers)}")
    try:
        yield group
    finally:
        group.kill()
        while not group.remove():
            pass
