"""A browser for the tests of a module, and a console with a private box in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from execserver.box.web.pages import has_terminal
from tests.box.boxes import Person
from tests.box.web.page import Web, console
from tests.box.web_ui.install import BrowserMissing, driver, program
from tests.box.web_ui.tab import Tab, opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real Chromium.  As root it has no sandbox of its own; what it opens is ours."""
    try:
        path, play = program(), driver().sync_playwright
    except BrowserMissing as missing:
        pytest.skip(str(missing))
    with play() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=120_000)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """A console, with a private server on this machine as its box."""
    if not has_terminal():
        pytest.skip("there is no xterm.js (python3 build.py build fetches it)")
    with console(Person(tmp_path_factory.mktemp("web") / "a home")) as running:
        yield running


@pytest.fixture
def tab(browser: Any, web: Web) -> Iterator[Tab]:
    """The console in a tab of 1280 by 800."""
    with opened(browser, web.url, viewport={"width": 1280, "height": 800}) as tab:
        yield tab
