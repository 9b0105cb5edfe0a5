"""One console for the tests of a module: a private box, and a server on loopback with the name `dev`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.box.boxes import Person
from tests.box.web.page import Page, Web, console
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Person:
    """Who runs the console."""
    return Person(tmp_path_factory.mktemp("web") / "a home")


@pytest.fixture(scope="module")
def web(host: Person, server: ServerProcess) -> Iterator[Web]:
    """The console."""
    assert host.run("box", "add", "dev", server.url).returncode == 0
    with console(host) as running:
        yield running


@pytest.fixture
def page(web: Web) -> Iterator[Page]:
    """A page of it."""
    with web.page() as page:
        yield page
