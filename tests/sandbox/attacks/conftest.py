"""Attacks on the sandbox by category: a module each, played on every back end; none may skip as a whole.

Payloads run only inside views that a test has made, against files, processes and sockets of that test.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from execserver.zygote import confinement
from tests.conftest import LONG
from tests.e2e.sandbox_places import Place, place_for
from tests.sandbox.attacks.ground import Ground
from tests.support.server_process import OURS, Flavour, ServerProcess
from tests.support.source import ROOT
from tests.support.ways import PLAYED, VIEWS, Way, require, server_flavour

FOLDER = "tests/sandbox/attacks/"
GONE_S = 2 if LONG else 20  # within which nothing is left of a sandbox; short runs share the machine
FEW = tuple(way for way in PLAYED if way.name in ("native-user", "bubblewrap-root", "landlock-user"))
LANDLOCK = tuple(way for way in PLAYED if way.back_end == confinement.LANDLOCK)
_outcomes: dict[str, set[str]] = defaultdict(set)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Play a test on every back end that makes views, or on all with `any_way`.

    With `few_ways` it is played once on each, with `landlock_way` where there is no view.
    """
    if "any_way" in metafunc.fixturenames:
        metafunc.parametrize("any_way", PLAYED, ids=str, indirect=True)
    elif "few_ways" in metafunc.fixturenames:
        metafunc.parametrize("few_ways", FEW, ids=str, indirect=True)
    elif "landlock_way" in metafunc.fixturenames:
        metafunc.parametrize("landlock_way", LANDLOCK, ids=str, indirect=True)
    elif "way" in metafunc.fixturenames:
        metafunc.parametrize("way", VIEWS, ids=str, indirect=True)


@pytest.fixture
def way(request: pytest.FixtureRequest) -> Way:
    """A user and a back end that shows views of its own."""
    chosen: Way = request.param
    require(chosen)
    return chosen


@pytest.fixture
def any_way(request: pytest.FixtureRequest) -> Way:
    """A user and a back end, the one without views included."""
    chosen: Way = request.param
    require(chosen)
    return chosen


@pytest.fixture
def few_ways(request: pytest.FixtureRequest) -> Way:
    """One user and way of each back end, for what differs by back end only."""
    chosen: Way = request.param
    require(chosen)
    return chosen


@pytest.fixture
def landlock_way(request: pytest.FixtureRequest) -> Way:
    """A user, and Landlock alone."""
    chosen: Way = request.param
    require(chosen)
    return chosen


@pytest.fixture
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    """A workspace with protected and denied parts, and what lies beside it."""
    (name,) = {"any_way", "few_ways", "landlock_way", "way"} & set(request.fixturenames)
    return Ground(tmp_path, request.getfixturevalue(name))


SERVERS = ("root", "user", "root-without-userns", "bubblewrap-user", "old-kernel-user")


@pytest.fixture(scope="module", params=SERVERS)
def attacked_server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """A server as root, as an ordinary user, and on other back ends."""
    with started(server_flavour(OURS, request.param)) as running:
        yield running


@contextmanager
def started(flavour: Flavour) -> Iterator[ServerProcess]:
    """Run a server that must not fail internally."""
    with ServerProcess(flavour, cwd=ROOT) as running:
        yield running
        assert "Traceback" not in running.errors()


@pytest.fixture
def place(attacked_server: ServerProcess) -> Iterator[Place]:
    """A workspace of the server's user and a connection to the server."""
    connection = attacked_server.connect()
    connection.open_session()
    owner = int(Path(f"/proc/{attacked_server.pid}/status").read_text().split("Uid:")[1].split()[0])
    with place_for(connection, owner) as made:
        made.server = attacked_server
        yield made
    connection.close()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how the tests of a category fare."""
    if report.nodeid.startswith(FOLDER) and (report.when == "call" or report.skipped):
        _outcomes[report.nodeid.partition("::")[0]].add(report.outcome)


def all_skipped(outcomes: Mapping[str, set[str]]) -> list[str]:
    """Return the categories of which no test was played."""
    return [category for category, found in outcomes.items() if found == {"skipped"}]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run when all of a category was skipped: then nothing was tried."""
    untried = all_skipped(_outcomes)
    if untried and session.exitstatus == pytest.ExitCode.OK:
        print(f"\nall tests of these categories were skipped: {', '.join(untried)}")  # noqa: T201
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
