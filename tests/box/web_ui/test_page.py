"""The page as a whole in a real browser: processes, ports, the sandbox, keys, both schemes, every size."""

from __future__ import annotations

import re
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from tests.box.web.page import Web
from tests.box.web_ui.tab import Tab, opened

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

TABS = ("Processes", "Terminals", "Files", "Ports", "Sandbox")


class Hello(BaseHTTPRequestHandler):
    """Answers `hello`."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *words: object) -> None:
        pass


@contextmanager
def http_server() -> Iterator[int]:
    """Serve on loopback; yield the port."""
    server = HTTPServer(("127.0.0.1", 0), Hello)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def start(tab: Tab, command: str, name: str = "", terminal: bool = True) -> None:
    """Start a command by the dialog."""
    tab.page.keyboard.press("n")
    tab.page.get_by_role("textbox", name="Command").fill(command)
    tab.page.get_by_role("textbox", name="Name").fill(name)
    tab.page.get_by_label("With a terminal").set_checked(terminal)
    tab.page.keyboard.press("Enter")


def process(tab: Tab, name: str) -> Any:
    """Return the row of a process."""
    return tab.page.locator(".process", has_text=name)


def test_a_busy_process_is_shown_with_what_it_uses(tab: Tab) -> None:
    start(tab, "while :; do :; done", name="busy", terminal=False)
    tab.sees("you type")
    tab.choose("Processes")
    row = process(tab, "busy")
    row.locator(".value", has_text=re.compile(r"^[1-9][\d.]* %$")).wait_for()
    points = row.locator(".spark.cpu polyline")
    tab.page.wait_for_function("() => document.querySelectorAll('.spark.cpu polyline')[1].points.length >= 3")
    assert points.evaluate("line => line.points.length") >= 3
    tab.shot("processes-light")
    row.get_by_role("button", name="Signal…").click()
    tab.button("KILL (no way out)").click()
    tab.sees("It gets no chance to save anything.")
    tab.button("Kill").click()
    row.get_by_text("ended with status 137").wait_for()


def test_output_is_read_from_the_log_as_text(tab: Tab) -> None:
    start(
        tab,
        "printf '<b>bold</b> \\033[31mred\\033[0m \\342\\200\\256x\\n'; echo bad >&2; exit 4",
        name="told",
        terminal=False,
    )
    tab.sees("ended with status 4")
    tab.choose("Processes")
    process(tab, "told").get_by_role("button", name="Log").click()
    log = tab.page.get_by_label("Output", exact=True)
    tab.sees("This is all that the box has.")
    # Two pipes have no order.
    assert log.locator("span:not(.stderr)").inner_text() == "<b>bold</b> red \\u202ex\n"
    assert log.locator(".stderr").inner_text() == "bad\n"
    tab.button("Close").click()


def test_names_of_processes_are_text(tab: Tab) -> None:
    start(tab, "sleep 60; : '<img src=x onerror=attacked=true>' \u202e", terminal=False)
    tab.sees("you type")
    tab.choose("Processes")
    row = process(tab, "<img src=x onerror=attacked=true>")
    row.wait_for()
    assert "\\u202e" in row.inner_text()
    assert tab.page.locator("main img").count() == 0


def test_a_port_is_forwarded_and_closed(tab: Tab) -> None:
    with http_server() as port:
        tab.choose("Ports")
        tab.page.get_by_label("Port of the box").fill(str(port))
        tab.button("Forward it").click()
        row = tab.page.locator(".port", has_text=str(port))
        link = row.get_by_role("link")
        link.wait_for()
        url = link.get_attribute("href")
        assert url is not None
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert answer.read() == b"hello"
        tab.shot("ports")
        row.get_by_role("button", name="Close").click()
        row.get_by_role("button", name="Forward").wait_for()
        address = (re.findall(r"//([\d.]+):", url)[0], int(re.findall(r":(\d+)", url)[0]))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=20).close()


def test_the_sandbox_report_names_policies_and_checks(tab: Tab) -> None:
    tab.choose("Sandbox")
    card = tab.page.locator(".cards li", has_text="workspace-write")
    card.wait_for()
    assert re.search("enforced by|not available", card.inner_text())
    assert tab.page.locator(".checks li", has_text="landlock").count() == 1
    tab.shot("sandbox")


def test_everything_is_reached_by_keyboard(tab: Tab) -> None:
    keys = tab.page.keyboard
    focused = "() => document.activeElement.textContent"
    keys.press("?")
    tab.sees("start a command or a shell")
    tab.shot("keys")
    keys.press("Escape")
    for number, name in enumerate(TABS, 1):
        keys.press(str(number))
        assert tab.page.evaluate(focused) == name
        selected = tab.page.locator("#tabs [aria-selected=true]")
        assert selected.inner_text() == name
    keys.press("Home")
    assert tab.page.evaluate(focused) == "Processes"
    keys.press("ArrowRight")
    keys.press("Enter")
    assert tab.page.locator("#tabs [aria-selected=true]").inner_text() == "Terminals"
    keys.press("b")
    assert "this machine" in tab.page.evaluate(focused)
    keys.press("n")
    tab.page.get_by_role("textbox", name="Command").wait_for()
    keys.type("cat")
    keys.press("Enter")
    tab.sees("you type")
    keys.type("typed\n")
    tab.wait_for_screen("typed \ntyped ")
    keys.press("Control+Shift+ArrowUp")
    assert tab.page.evaluate("() => document.activeElement.getAttribute('role')") == "tab"
    keys.press("Delete")
    tab.sees("No terminal is open.")


def test_the_address_leads_back(tab: Tab) -> None:
    tab.choose("Files")
    tab.choose("Ports")
    tab.page.go_back()
    assert tab.page.locator("#tabs [aria-selected=true]").inner_text() == "Files"
    tab.page.reload()
    tab.page.locator(".files .entry, .files .empty").first.wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1440, 3840])
def test_every_view_fits_and_can_be_read(browser: Any, web: Web, scheme: str, width: int) -> None:
    size = {"width": width, "height": 2160 if width > 3000 else 800}
    with opened(browser, web.url, viewport=size, color_scheme=scheme) as tab:
        tab.new_shell()
        for name in TABS:
            tab.choose(name)
            tab.page.wait_for_load_state("networkidle")
            tab.shot(f"{name.lower()}-{scheme}-{width}")
            wider = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert tab.page.evaluate(wider) == 0, name
            assert tab.page.evaluate(FAINT) == [], name


# Texts whose contrast to what is behind them is less than 4.5 to 1.
FAINT = """() => {
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (rgb) => {
        const [r, g, b] = rgb.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        for (let each = element; each; each = each.parentElement) {
            const [r, g, b, a = 1] = parts(getComputedStyle(each).backgroundColor);
            if (a === 1) return [r, g, b];
        }
        return [255, 255, 255];
    };
    const faint = [];
    for (const element of document.querySelectorAll("body *")) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        if (!own || element.closest(".screen, :disabled")) continue;
        if (!element.checkVisibility({opacityProperty: true})) continue;
        const colour = light(parts(getComputedStyle(element).color).slice(0, 3));
        const ground = light(behind(element));
        const contrast = (Math.max(colour, ground) + 0.05) / (Math.min(colour, ground) + 0.05);
        if (contrast < 4.5) faint.push(`${element.className} ${element.textContent}: ${contrast.toFixed(2)}`);
    }
    return faint;
}"""
