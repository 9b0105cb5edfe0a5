"""Recordings as asciicast v3."""

from __future__ import annotations

import json

from execserver.audit.cast import cast
from execserver.audit.recording import CUT, EXIT, INPUT, OUTPUT, RESIZE


def test_a_header_and_an_event_for_each_chunk() -> None:
    facts: dict[str, object] = {"argv": ["sh", "-c", "a b"], "at": 1_700_000_000_123}
    chunks = [
        (1_500_000, OUTPUT, "ä".encode()[:1]),
        (2_000_000, OUTPUT, "ä".encode()[1:] + b"\xff\x1b[0m"),
        (2_250_000, INPUT, b"q"),
        (2_250_000, RESIZE, b"100x30"),
        (2_000_000, CUT, b""),  # the clock was set back
        (3_000_000, EXIT, b"7"),
    ]
    header, *events = map(json.loads, cast(facts, chunks))
    assert header == {
        "version": 3,
        "term": {"cols": 80, "rows": 24},
        "timestamp": 1_700_000_000,
        "command": "sh -c 'a b'",
    }
    assert events == [
        [2.0, "o", "ä\ufffd\x1b[0m"],
        [0.25, "i", "q"],
        [0.0, "r", "100x30"],
        [0.0, "m", "not recorded from here on: too much, or no room on the disk"],
        [0.75, "x", "7"],
    ]


def test_a_recording_without_facts_is_one_too() -> None:
    assert list(map(json.loads, cast({}, []))) == [{"version": 3, "term": {"cols": 80, "rows": 24}}]
