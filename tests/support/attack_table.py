"""Tables of attacks and the tests that play them: a test that is gone is noticed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.support.source import ROOT


def check_tests_exist(tests: Iterable[str]) -> None:
    """Fail unless each test, `MODULE::NAME` below `tests/`, is defined."""
    for test in tests:
        module, _, name = test.partition("::")
        text = (ROOT / "tests" / module).read_text()
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), test
