"""Terminals in a real browser: typing, reading along, taking over, and output that means harm."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.box.web.page import Web
from tests.box.web_ui.install import is_installed
from tests.box.web_ui.tab import Tab, opened

long = pytest.mark.long
slow = pytest.mark.timeout(300)

KEYS_FOR_A_SECOND = "stty -icanon -echo min 0 time 10"
SHOW_KEYS = "dd bs=99 count=1 2>/dev/null | cat -v; stty sane; echo over"


@slow
@pytest.mark.skipif(not is_installed(), reason="`python -m tests.box.web_ui.install` has not been run")
def test_a_shell_is_opened_and_shows_what_is_typed(tab: Tab) -> None:
    tab.new_shell()
    tab.page.keyboard.type("echo $((6 * 7))-it\n")
    tab.wait_for_screen("\n42-it ")
    tab.page.keyboard.type("exit 3\n")
    tab.sees("ended with status 3")


@long
@slow
def test_colours_reach_the_screen_under_the_policy(tab: Tab) -> None:
    tab.new_shell()
    tab.page.keyboard.type("printf '\\033[38;2;200;30;40mtrue\\033[0m \\033[32mgreen\\033[0m\\n'\n")
    tab.wait_for_screen("\ntrue green ")
    colour = "element => getComputedStyle(element).color"
    span = tab.page.locator(".xterm-rows span", has_text="true").last
    assert span.evaluate(colour) == "rgb(200, 30, 40)"
    green = tab.page.locator(".xterm-rows span", has_text="green").last
    assert green.evaluate(colour) == "rgb(26, 127, 55)"
    tab.shot("terminal-light")


@long
@slow
def test_the_terminal_has_the_size_of_its_place(tab: Tab) -> None:
    tab.new_shell()
    tab.page.keyboard.type("stty size\n")
    tab.wait_for_screen(f"\n{size_of(tab)} ")
    before = size_of(tab)
    tab.page.set_viewport_size({"width": 900, "height": 600})
    tab.page.wait_for_function(
        "before => document.querySelectorAll('.xterm-rows > div').length < before", arg=int(before.split()[0])
    )
    tab.page.keyboard.type("clear; stty size; echo done\n")
    tab.wait_for_screen("\ndone ")
    rows, cols = (int(each) for each in tab.screen().split("\n")[0].split())
    assert rows < int(before.split()[0])
    assert cols < int(before.split()[1])


def size_of(tab: Tab) -> str:
    """Return rows and columns as the terminal draws them."""
    rows = tab.page.locator(".xterm-rows > div").count()
    cell = "e => e.offsetWidth / document.querySelector('.xterm-char-measure-element').offsetWidth * 32"
    return f"{rows} {round(tab.page.locator('.xterm-screen').evaluate(cell))}"


@long
@slow
def test_two_pages_read_along_and_take_over(browser: Any, web: Web, tab: Tab) -> None:
    tab.new_shell()
    tab.page.keyboard.type("echo ours-$((40 + 2))\n")
    tab.wait_for_screen("\nours-42 ")
    with opened(browser, web.url) as other:
        other.page.locator(".process[data-state=running]").last.get_by_role("button", name="Open").click()
        other.sees("you read along")
        other.wait_for_screen("\nours-42 ")
        other.page.keyboard.type("echo not-$((1 + 1))\n")
        tab.page.keyboard.type("echo both-$((2 + 2))\n")
        other.wait_for_screen("\nboth-4 ")
        assert "not-2" not in other.screen()
        other.button("Take the keyboard").click()
        other.sees("you type")
        tab.sees("you read along")
        other.shot("reading-along")
        other.page.keyboard.type("echo theirs-$((3 + 3))\n")
        tab.wait_for_screen("\ntheirs-6 ")


@long
@slow
def test_several_terminals_are_open_at_a_time(tab: Tab) -> None:
    for number in (1, 2):
        tab.new_shell()
        tab.page.keyboard.type(f"echo terminal-$(({number} + 0))\n")
        tab.wait_for_screen(f"\nterminal-{number} ")
    tabs = tab.page.locator(".terminal-tabs [role=tab]")
    assert tabs.count() == 2
    tabs.first.click()
    tab.wait_for_screen("\nterminal-1 ")
    assert "terminal-2" not in tab.screen()
    tab.button("Close").click()
    tab.wait_for_screen("\nterminal-2 ")
    assert tabs.count() == 1


@long
@slow
def test_output_can_neither_type_nor_write_into_the_page(tab: Tab) -> None:
    tab.new_shell()
    hostile = "<img src=x onerror=attacked=true>\\033]0;<b>title\\007\\033]52;c;ZWNobw==\\007\\033[21t\\033[c"
    tab.page.keyboard.type(f"{KEYS_FOR_A_SECOND}; printf '{hostile}\\n'; {SHOW_KEYS}\n")
    tab.wait_for_screen("<img src=x onerror=attacked=true>")
    tab.wait_for_screen("\n^[[?1;2cover ")  # the one answer: what kind of terminal this is
    assert tab.page.locator("main img").count() == 0
    assert tab.page.title().startswith("this machine")


@long
@slow
def test_what_is_old_gets_no_answer(browser: Any, web: Web, tab: Tab) -> None:
    tab.new_shell()
    tab.page.keyboard.type(f"{KEYS_FOR_A_SECOND}; printf '\\033[c'; {SHOW_KEYS}\n")
    tab.wait_for_screen("\n^[[?1;2cover ")
    tab.button("Close").click()
    tab.choose("Processes")
    tab.page.locator(".process[data-state=running]").last.get_by_role("button", name="Open").click()
    tab.sees("you type")
    tab.page.keyboard.type("echo clean-$((5 + 5))\n")
    tab.wait_for_screen("\nclean-10 ")
    assert tab.screen().count("1;2c") == 1


@long
@slow
def test_a_sequence_that_repeats_without_end_does_not_freeze_the_page(tab: Tab) -> None:
    tab.new_shell()
    script = 'for f in I L M S T Z b; do printf "x\\033[2147483647$f"; done; echo over-$((2 + 3))\n'
    tab.page.keyboard.type(script)
    tab.wait_for_screen("over-5 ")


@long
@slow
def test_much_output_ends_with_its_end(tab: Tab) -> None:
    tab.new_shell()
    tab.page.keyboard.type("seq 200000; echo over-$((4 + 4))\n")
    tab.wait_for_screen("\nover-8 ")
    assert "\n200000 " in tab.screen()


@long
@slow
def test_a_lost_page_connection_comes_back_with_its_terminals(tab: Tab) -> None:
    sockets: list[Any] = []

    def pass_on(socket: Any) -> None:
        sockets.extend((socket, socket.connect_to_server()))

    tab.page.route_web_socket(re.compile("/ws$"), pass_on)
    tab.page.reload()
    tab.page.locator(".box[aria-current]").wait_for()  # before it there is nothing to choose
    tab.new_shell()
    tab.page.keyboard.type("echo before-$((1 + 1))\n")
    tab.wait_for_screen("\nbefore-2 ")
    tab.page.evaluate("""() => {
        const line = document.getElementById("link-state");
        globalThis.told = [];
        new MutationObserver(() => told.push(line.textContent)).observe(line, {childList: true});
    }""")
    for socket in sockets[:]:
        socket.close()
    tab.page.wait_for_function("() => told.at(-1) === 'Connected'")
    assert tab.page.evaluate("told")[0].startswith("Not connected")
    tab.sees("you type")
    tab.wait_for_screen("\nbefore-2 ")
    tab.page.keyboard.type("echo after-$((2 + 2))\n")
    tab.wait_for_screen("\nafter-4 ")
