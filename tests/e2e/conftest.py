"""Servers and connections for the tests that know a server only from outside.

A module's tests share one server (module variable `SETTINGS` shortens its durations); each has connections of
its own. With EXECSERVER_REFERENCE=1 every test is played against the reference server of the target contract
as well, so that it holds what the contract says and not what we think; `ours_only(why)` exempts a test.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.sandbox_places import Place, as_ordinary_user, place_for
from tests.support.server_process import OURS, Flavour, ServerProcess
from tests.support.ws_peer import WsPeer

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = os.environ.get("EXECSERVER_REFERENCE") == "1"

StartServer = Callable[..., ServerProcess]
Connect = Callable[..., WsPeer]


def pytest_configure(config: pytest.Config) -> None:
    """Declare this folder's marker."""
    config.addinivalue_line("markers", "ours_only(why): not played against the reference server")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Play a test against ours and, in a reference run, against the reference."""
    if "flavour" not in metafunc.fixturenames:
        return
    flavours = ["ours"]
    if REFERENCE and not metafunc.definition.get_closest_marker("ours_only"):
        flavours.append("0.142.0")
    metafunc.parametrize("flavour", flavours, indirect=True, scope="session")


@pytest.fixture(scope="session")
def flavour(request: pytest.FixtureRequest) -> Iterator[Flavour]:
    """The server program under test."""
    if request.param == "ours":
        yield OURS
        return
    from tests.reference.conftest import reference_flavour
    from tests.reference.install import ReferenceMissing, new_home

    home = new_home()
    try:
        yield reference_flavour(request.param, str(home))
    except ReferenceMissing as missing:
        pytest.skip(str(missing))
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def server(flavour: Flavour, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """The server that the tests of a module share."""
    settings = getattr(request.module, "SETTINGS", None)
    with ServerProcess(flavour, settings=settings, cwd=ROOT) as running:
        yield running
        assert "Traceback" not in running.errors()


@pytest.fixture(scope="module", params=["root", "ordinary"])
def sandbox_server(flavour: Flavour, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """The server for sandboxed processes, as whoever runs the tests and as a user without rights."""
    if request.param == "ordinary" and flavour.is_reference:
        pytest.skip("the reference is tried as whoever runs the tests only")
    if request.param == "ordinary":
        flavour = as_ordinary_user(flavour)
    with ServerProcess(flavour, cwd=ROOT) as running:
        yield running
        assert "Traceback" not in running.errors()


@pytest.fixture
def place(sandbox_server: ServerProcess) -> Iterator[Place]:
    """A workspace of the server's user and a connection to the server."""
    connection = sandbox_server.connect()
    connection.open_session()
    owner = int(Path(f"/proc/{sandbox_server.pid}/status").read_text().split("Uid:")[1].split()[0])
    with place_for(connection, owner) as made:
        yield made
    connection.close()


@pytest.fixture
def start_server(flavour: Flavour) -> Iterator[StartServer]:
    """Starts servers of the test's own; takes the keywords of `ServerProcess`."""
    with ExitStack() as stack:

        def start(**options: object) -> ServerProcess:
            options.setdefault("cwd", ROOT)
            return stack.enter_context(ServerProcess(flavour, **options))  # type: ignore[arg-type]

        yield start


@pytest.fixture
def connect(server: ServerProcess) -> Iterator[Connect]:
    """Opens WebSockets to the shared server or, when it is given, to another one."""
    with ExitStack() as stack:

        def open_connection(to: ServerProcess | None = None) -> WsPeer:
            connection = (server if to is None else to).connect()
            stack.callback(connection.close)
            return connection

        yield open_connection


@pytest.fixture
def peer(connect: Connect) -> WsPeer:
    """A connection to the shared server with a session of its own."""
    connection = connect()
    connection.open_session()
    return connection
