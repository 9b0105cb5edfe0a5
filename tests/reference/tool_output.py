"""Reads what the client's shell tool reported to the model."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

REPORT = re.compile(
    r"(?:Chunk ID: \w+\n)?"
    r"Wall time: [\d.]+ seconds\n"
    r"(?:Process exited with code (?P<code>-?\d+)\n)?"
    r"(?:Process running with session ID (?P<session>\d+)\n)?"
    r"(?:Original token count: \d+\n)?"
    r"Output:\n(?P<text>.*)",
    re.DOTALL,
)


class ToolOutput(NamedTuple):
    """One report: the exit code of an ended command, the session of a running one, and its output."""

    code: int | None
    session: int | None
    text: str


def read(report: Any) -> ToolOutput:
    """Parse a report. Raises when it has another form, e.g. a refusal by the client."""
    found = REPORT.fullmatch(str(report))
    assert found is not None, report
    code, session = found["code"], found["session"]
    return ToolOutput(int(code) if code else None, int(session) if session else None, found["text"])
