"""A recording in a real browser: played, wound, and unable to do harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from execserver.audit.cast import cast
from tests.box.web_ui.tab import WAIT_MS, Tab
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

SECOND = 1_000_000
CHUNKS = [
    (0, b"o", b"first\r\n"),
    (SECOND // 2, b"o", "gr\u00fc\u00df\r\n".encode()),
    (3600 * SECOND, b"o", b"an hour later\r\n"),
    (3601 * SECOND, b"x", b"3"),
]
HARM = (
    "\x1b]8;;javascript:attacked=true\x07<img src=x onerror=attacked=true>\x1b]8;;\x07"
    "\x1b[c\x1b[6n\x1b]0;title\x07\x1b]52;c;YXR0YWNr\x07"
)


def play(tab: Tab, folder: Path, text: str) -> None:
    (folder / "session.cast").write_text(text)
    tab.open_folder(folder)
    tab.page.locator(".files .entry").get_by_text("session.cast", exact=True).click()
    tab.button("Play…").click()


def screen(tab: Tab) -> str:
    rows: list[str] = tab.page.locator(".recorded .xterm-rows > div").all_inner_texts()
    return "\n".join(row.rstrip().replace("\xa0", " ") for row in rows).strip()


def recorded() -> str:
    facts: dict[str, object] = {"argv": ["sh", "-c", "make <b>"], "at": 0, "size": [10, 40]}
    return "".join(f"{line}\n" for line in cast(facts, CHUNKS))


def test_a_recording_is_played_to_its_end_without_its_long_pauses(tab: Tab, tmp_path: Path) -> None:
    play(tab, tmp_path, recorded())
    tab.sees("ended with status 3")
    assert screen(tab) == "first\ngr\u00fc\u00df\nan hour later"
    tab.sees("60:01 of 60:01")
    assert tab.page.get_by_label("Place in the recording").input_value() == "3601"
    tab.sees("sh -c 'make <b>'")
    assert tab.page.locator(".recorded .xterm-rows > div").count() == 10
    tab.shot("recording")
    tab.button("Close").click()
    assert tab.page.locator("dialog").count() == 0
    assert tab.page.get_by_label("Content").is_visible()


def test_the_keyboard_pauses_and_winds(tab: Tab, tmp_path: Path) -> None:
    play(tab, tmp_path, recorded())
    tab.sees("ended with status 3")
    place = tab.page.get_by_label("Place in the recording")
    place.press("Home")
    wait_until(lambda: screen(tab) == "first", WAIT_MS / 1000)
    tab.button("Play").wait_for()  # who winds a recording that stands still looks at it
    tab.page.keyboard.press(".")
    wait_until(lambda: screen(tab) == "first\ngr\u00fc\u00df", WAIT_MS / 1000)
    tab.sees("0:05 of 60:01")
    tab.page.keyboard.press(",")
    wait_until(lambda: screen(tab) == "first", WAIT_MS / 1000)
    tab.button("Play").focus()
    tab.page.keyboard.press("Space")
    tab.sees("ended with status 3")
    tab.page.keyboard.press("Escape")
    assert tab.page.locator("dialog").count() == 0


def test_what_is_recorded_stays_in_its_terminal(tab: Tab, tmp_path: Path) -> None:
    header = {"version": 3, "term": {"cols": 10**9, "rows": 0}, "command": HARM}
    events = [[0, "o", HARM], [0, "r", "9999999x99999999"], [0, "r", "NaNx1"], [0, "?", "x"], [0, "m", HARM]]
    play(tab, tmp_path, "".join(json.dumps(each) + "\n" for each in (header, *events, [0, "o", "end"])))
    wait_until(lambda: screen(tab).endswith("end"), WAIT_MS / 1000)
    tab.page.locator(".recorded").get_by_text("<img src=x").first.click()
    assert tab.page.locator("dialog").count() == 1  # no question whether to open an address
    assert tab.page.title().endswith(" · Files · execserver console")


def test_sequences_that_repeat_without_end_are_ignored(tab: Tab, tmp_path: Path) -> None:
    endless = "x" + "".join(f"\x1b[2147483647{final}" for final in "ILMSTZb")
    lines = [{"version": 3}, [0, "o", endless], [0, "o", "x\x1b[3by"]]
    play(tab, tmp_path, "".join(json.dumps(each) + "\n" for each in lines))
    wait_until(lambda: screen(tab) == "xxxxxy", WAIT_MS / 1000)


def test_many_winds_at_once_end_at_the_last_place(tab: Tab, tmp_path: Path) -> None:
    much = [[1, "o", "much\r\n" * 100_000], [1, "o", "\x1b[2J\x1b[Hlast"]]
    play(tab, tmp_path, "".join(json.dumps(each) + "\n" for each in ({"version": 3}, *much)))
    tab.sees("0:02 of 0:02")
    place = tab.page.get_by_label("Place in the recording")
    place.evaluate("""place => {
        for (let turn = 0; turn < 100; turn += 1) {
            place.value = String(1 + (turn % 2));
            place.dispatchEvent(new Event("input"));
        }
    }""")
    wait_until(lambda: screen(tab) == "last", WAIT_MS / 1000)
    tab.sees("0:02 of 0:02")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hello\n", "Line 1 of the recording is no JSON."),
        ('{"version":2}\n', "This is no recording of the kind asciicast v3."),
        ('{"version":3}\n[0,"o","x"]\n[-1,"o","x"]\n', "Line 3 of the recording is no event."),
        ('{"version":3}\n[1e999,"o","x"]\n', "Line 2 of the recording is no event."),
        ('{"version":3}\n[1e308,"o","x"]\n[1e308,"o","x"]\n', "Line 3 of the recording is no event."),
        ('{"version":3}\n[1,"o"', "Line 2 of the recording is no JSON."),
    ],
)
def test_what_is_no_recording_is_told(tab: Tab, tmp_path: Path, text: str, why: str) -> None:
    play(tab, tmp_path, text)
    tab.sees(why)
    assert tab.page.locator("dialog").count() == 0
