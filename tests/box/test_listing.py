"""What a box says about its commands is shown, and commands no terminal."""

from __future__ import annotations

import json
import socket

from execserver.box import survey
from execserver.box.book import Entry
from execserver.box.commands.listing import table
from execserver.protocol.watching import SessionProcess

EVIL = "\x1b]0;owned\x07\n\u202e"


def entry(**members: object) -> SessionProcess:
    given: dict[str, object] = {
        "session_id": "s",
        "process_id": f"{EVIL}id",
        "process_name": f"n{EVIL}",
        "argv": ("sh", "-c", f"echo {EVIL}" + "x" * 500),
        "tty": False,
        "running": True,
        "started_at_ms": 40_000,
        "watchers": 0,
    }
    return SessionProcess(**(given | members))  # type: ignore[arg-type]


def test_a_row_is_one_printable_line() -> None:
    shown = table([entry(), entry(running=False, exit_code=3, cpu_time_ms=1500, rss_bytes=2**21)], 100.0)
    assert len(shown.splitlines()) == 3
    assert shown.replace("\n", "").isprintable()
    assert len(max(shown.splitlines(), key=len)) < 250
    columns = [line.split()[-10:] for line in shown.splitlines()[1:]]
    assert [each for each in columns[0] if each in ("running", "1m", "-")] == ["running", "1m", "-", "-"]
    assert {"ended", "3", "1.5s", "2", "MiB"} < set(shown.splitlines()[2].split())


def test_a_state_is_for_people_or_programs() -> None:
    states = [
        survey.State("a", "ssh:a", 1.0, 2.0, "1.0", "native"),
        survey.State("c", "relay:c", error="a relay asks for a token", cure="give one"),
        survey.State("b", f"ws://{EVIL}", error="no answer within 10 s"),
    ]
    shown = survey.as_table(states)
    assert shown.replace("\n", "").isprintable()
    assert shown.splitlines()[-3:] == [
        "c: a relay asks for a token",
        "  What to do: give one",
        "b: no answer within 10 s",
    ]
    told = [each["error"] for each in json.loads(survey.as_json(states))]
    assert told == [None, "a relay asks for a token", "no answer within 10 s"]


def test_a_box_that_does_not_answer_is_told_with_what_to_do() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{unused.getsockname()[1]}"
        states = survey.ask(
            [
                Entry("closed", url),
                Entry("tokenless", "relay:https://relay.example.org/devbox"),
                Entry("wrong", "ftp://somewhere"),
            ]
        )
    assert [state.cure.split(":")[0].split("`")[0] for state in states] == [
        "start ",
        "a list uses the tokens of the boxes file only",
        "a box is ws",
    ]
