"""A tab of the browser with the console in it, for tests: what it shows, and what must not happen in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until

WAIT_MS = 30_000
SHOTS_VARIABLE = "EXECSERVER_SCREENSHOTS"  # a folder for pictures of what the tests see

_WATCH = """
globalThis.violations = [];
globalThis.attacked = false;
addEventListener("securitypolicyviolation", (event) => violations.push(event.effectiveDirective));
"""


class Tab:
    """A page of the console; `page` is Playwright's."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._said)

    def _said(self, message: Any) -> None:
        # Files and uploads that are not there are told so by the browser itself; the page shows it too.
        if message.type == "error" and "status of 4" not in message.text:
            self.errors.append(message.text)

    def button(self, name: str, exact: bool = True) -> Any:
        """Return the button of this name, of those that can be seen."""
        return self.page.get_by_role("button", name=name, exact=exact)

    def choose(self, name: str) -> None:
        """Go to a tab of the box."""
        self.page.locator("#tabs").get_by_role("tab", name=name).click()

    def sees(self, text: str) -> Any:
        """Wait until a text can be seen; return where."""
        found = self.page.get_by_text(text).locator("visible=true").first
        found.wait_for()
        return found

    def new_shell(self) -> None:
        """Open a shell and wait until it can be typed into."""
        self.choose("Terminals")
        tabs = self.page.locator(".terminal-tabs [role=tab]")
        before = tabs.count()
        self.button("New shell").click()
        tabs.nth(before).wait_for()
        self.page.locator(".terminal-view:not([hidden]) [data-state=writer]").wait_for()
        self.page.keyboard.type("PS1='ready: '\n")
        self.wait_for_screen("\nready: ")

    def screen(self) -> str:
        """Return the lines of the terminal that is shown."""
        rows = self.page.locator(".terminal-view:not([hidden]) .xterm-rows > div").all_inner_texts()
        return "\n".join(row.rstrip().replace("\xa0", " ") + " " for row in rows)

    def wait_for_screen(self, text: str) -> None:
        """Wait until the terminal shows a text."""
        try:
            wait_until(lambda: text in self.screen(), WAIT_MS / 1000)
        except AssertionError:
            raise AssertionError(f"waiting for {text!r}: {self.screen()}") from None

    def open_folder(self, folder: Path | str) -> None:
        """Show a folder's files."""
        self.choose("Files")
        is_read = "() => document.querySelector('.browser .waiting').textContent === ''"
        # The home comes first, and would come over what is asked for before it.
        self.page.wait_for_function(f"{is_read} && document.querySelector('.browser .place').value !== ''")
        place = self.page.get_by_label("Path")
        place.fill(str(folder))
        place.press("Enter")
        self.page.wait_for_function(is_read)

    def entries(self) -> list[str]:
        """Return the names that the folder shows."""
        names: list[str] = self.page.locator(".files .entry").all_inner_texts()
        return names

    def shot(self, name: str) -> None:
        """Keep a picture, if somebody wants to look."""
        folder = os.environ.get(SHOTS_VARIABLE)
        if folder:
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"))

    def check(self) -> None:
        """Demand that nothing has gone wrong in the page, and nothing got past its policy."""
        assert self.page.evaluate("violations") == []
        assert self.page.evaluate("attacked") is False
        assert self.errors == []


@contextmanager
def opened(browser: Any, url: str, **options: Any) -> Iterator[Tab]:
    """Open the console in a fresh profile."""
    context = browser.new_context(accept_downloads=True, **options)
    context.add_init_script(_WATCH)
    try:
        tab = Tab(context.new_page())
        tab.page.goto(url)
        tab.page.locator(".box[aria-current]").wait_for()
        yield tab
        tab.check()
    finally:
        context.close()
