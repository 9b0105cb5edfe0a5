"""What a box says about its commands is shown, and commands no terminal."""

from __future__ import annotations

import json

from execserver.box import survey
from execserver.box.listing import table
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
        survey.State("b", f"ws://{EVIL}", error="no answer within 10 s"),
    ]
    shown = survey.as_table(states)
    assert shown.replace("\n", "").isprintable()
    assert shown.splitlines()[-1] == "b: no answer within 10 s"
    assert [each["error"] for each in json.loads(survey.as_json(states))] == [None, "no answer within 10 s"]
