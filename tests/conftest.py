"""What holds for every test: how many rounds are played, and that nothing is left behind.

`EXECSERVER_LONG=1` plays full rounds; `EXECSERVER_REFERENCE=1` adds the tests that need the reference
program.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.folders import plain_place
from tests.support.leaks import Resources, snapshot
from tests.support.source import forget_trees
from tests.support.waiting import wait_until

LONG = os.environ.get("EXECSERVER_LONG") == "1"

# Not collected at all rather than skipped: a skip would need a reason this run could change.
collect_ignore = [] if os.environ.get("EXECSERVER_REFERENCE") == "1" else ["reference"]

settings.register_profile(
    "short",
    max_examples=50,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "long",
    max_examples=2000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("long" if LONG else "short")

# For a test that names no limit itself; a short run's stands in pyproject.toml.
_LONG_TEST_LIMIT_S = 900

# How long a test's own clean-up may take to show, e.g. the end of a killed child.
_SETTLE_S = 10.0


def pytest_configure(config: pytest.Config) -> None:
    """Declare the project's markers, and let signals end what tests start also where they were ignored.

    So they are in the background of a shell without job control, and under nohup.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    gc.disable()  # until all tests are collected: they stay, and looking for what does not takes long
    config.addinivalue_line("markers", "keeps_open(reason): the test may leave descriptors or children open")
    config.addinivalue_line("markers", "long: plays only with EXECSERVER_LONG=1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the `long` tests out of a short run, and give those of a long run the time for full rounds."""
    if LONG:
        for item in items:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_LONG_TEST_LIMIT_S))
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def pytest_collection_finish() -> None:
    """Keep what the whole run needs out of every collection, above all out of those in forked children.

    A zygote collects before it serves; in a fork of this process that would go through, and copy, all of it.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def what_a_module_leaves_is_kept_out_of_collections() -> Iterator[None]:
    """Keep samples and reports of ended tests from being traversed by each collection of later ones.

    After the long tests of memory these are gigabytes, and a collection takes more than a second.
    """
    yield
    forget_trees()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test after which more descriptors are open, or more children exist, than before it.

    Fixtures of module and session scope are set up before the first count, so what they hold is no leak.
    What is opened later on their behalf needs `@pytest.mark.keeps_open("why")`.
    """
    before = snapshot()
    yield
    if request.node.get_closest_marker("keeps_open"):
        return
    if not snapshot().leaked_since(before):
        return
    gc.collect()
    leaked = _still_leaked(before)
    if leaked:
        pytest.fail("the test left behind:\n  " + "\n  ".join(leaked), pytrace=False)


def _still_leaked(before: Resources) -> list[str]:
    """Return what is left once a test's own clean-up had its time to show."""
    try:
        wait_until(lambda: not snapshot().leaked_since(before), _SETTLE_S)
    except AssertionError:
        return snapshot().leaked_since(before)
    return []


@pytest.fixture
def socket_folder() -> Iterator[str]:
    """A folder whose path leaves room for a name in the address of a Unix socket."""
    with tempfile.TemporaryDirectory(dir=plain_place()) as folder:
        yield folder
