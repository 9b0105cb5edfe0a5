"""Several boxes in a real browser: which there are, going from one to the other, one that does not answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.box.boxes import Person
from tests.box.web.page import Web, console
from tests.box.web_ui.tab import Tab, opened
from tests.support.server_process import ServerProcess

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory, server: ServerProcess) -> Iterator[Web]:
    """A console whose boxes are a private one, a server on loopback, and one that does not answer."""
    host = Person(tmp_path_factory.mktemp("web") / "a home")
    for name, url in (("dev", server.url), ("gone", "ws://127.0.0.1:1")):
        assert host.run("box", "add", name, url).returncode == 0
    with console(host) as running:
        yield running


@pytest.fixture
def tab(browser: Any, boxes: Web) -> Iterator[Tab]:
    """The console in a tab."""
    with opened(browser, boxes.url, viewport={"width": 1280, "height": 800}) as tab:
        yield tab


def box(tab: Tab, name: str) -> Any:
    """Return the button of a box."""
    return tab.page.locator(".box", has_text=name)


def test_boxes_are_shown_with_what_they_answer(tab: Tab) -> None:
    assert re.search(r"in use · \d+ ms · \d+\.\d+\.\d+", box(tab, "this machine").inner_text())
    assert re.search(r"(in use|answers) · \d+ ms", box(tab, "dev").inner_text())
    assert "does not answer" in box(tab, "gone").inner_text()
    tab.shot("boxes")


def test_a_box_that_does_not_answer_says_why(tab: Tab) -> None:
    box(tab, "gone").click()
    tab.page.locator("#box-state .warning").wait_for()
    tab.page.locator(".processes .failed").wait_for()
    assert "refused" in tab.page.locator(".processes .failed").inner_text().lower()
    tab.shot("unreachable")


def test_unsaved_changes_hold_back_from_another_box(tab: Tab, tmp_path: Path) -> None:
    (tmp_path / "draft").write_text("")
    box(tab, "dev").click()
    tab.open_folder(tmp_path)
    tab.page.locator(".files .entry").click()
    tab.page.get_by_label("Content").fill("much work")
    box(tab, "this machine").click()
    tab.sees("Leave it unsaved?")
    tab.button("Cancel").click()
    assert tab.page.get_by_label("Content").input_value() == "much work"
    assert "/dev/files" in tab.page.url
    box(tab, "this machine").click()
    tab.button("Discard them").click()
    tab.page.locator("#box-state h2", has_text="this machine").wait_for()
    assert tab.page.get_by_role("dialog").count() == 0
    assert not tab.page.get_by_label("Content").is_visible()


def test_a_terminal_of_one_box_stays_while_another_is_looked_at(tab: Tab) -> None:
    box(tab, "dev").click()
    tab.new_shell()
    box(tab, "this machine").click()
    tab.choose("Terminals")
    tab.page.locator(".terminal-tabs [role=tab]", has_text="shell on dev").click()
    tab.page.keyboard.type("echo still-$((1 + 1))\n")
    tab.wait_for_screen("\nstill-2 ")
