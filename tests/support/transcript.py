"""Reads recorded traffic and compares live messages with it.

A transcript is a file of JSON lines: messages of the client (`c2s`), messages of the server (`s2c`), the ends
of connections, notes that say what the recorder did in between. Values that differ from machine to machine
stand as placeholders in braces; `Bindings` puts this run's values in, and holds the patterns of those that
are free.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.peer import Json

FOLDER = Path(__file__).resolve().parent.parent / "transcripts"

FREE = {
    "UUID": "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
    "PORT": "[0-9]{1,5}",
    "MS": "[0-9]+",
    "DATE": "[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9:]{8} GMT",
    "HEX": "[0-9a-f]+",
    "CODE": "-1|137",
    "ANY": "(?s:.*)",
}
"""Placeholders that match by pattern when no value is bound to them."""

SENT = {"UUID": "0b6b2b1e-6f0c-4f0e-8f59-1f0c5a3f7a11"}
"""What stands for a free placeholder in a message that is sent."""

PLACEHOLDER = re.compile(r"\{([A-Z][A-Z_0-9]*)\}")
BASE64_MEMBERS = frozenset({"chunk", "dataBase64", "bodyBase64", "deltaBase64"})
KINDS = {">": "c2s", "<": "s2c", "#": "note"}
"""What the transcripts of `newest/` call the kinds of lines."""
RECORDED_NAMES = re.compile(r"/ROOT\b|/PKG\b|\bUUID\b|(?<=sha256:)[0-9a-f]{64}\b")
"""Placeholders there have no braces."""
MESSAGES = frozenset({"c2s", "s2c", "c2s-binary", "c2s-line", "s2c-line", "s2c-close"})


@dataclass(frozen=True)
class Line:
    """One line. `key` names it in tables: `connection:id`, with `#2` for the second use of an id."""

    number: int
    kind: str
    conn: str
    key: str
    msg: Json = None
    raw: str | None = None
    note: str = ""
    other: dict[str, Any] = field(default_factory=dict)


def lines_of(name: str) -> list[Line]:
    """Read the transcript of this name (the file name without `.jsonl`)."""
    text = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8")
    seen: dict[tuple[str, str], int] = {}
    records = enumerate(map(json.loads, text.splitlines()), 1)
    return _answers_first([_line(number, record, seen) for number, record in records])


def _answers_first(lines: list[Line]) -> list[Line]:
    """Put the answer to a start before the notifications of its process, which may have overtaken it."""
    found: list[Line] = []
    for line in lines:
        at = len(found)
        if line.kind == "s2c" and isinstance(line.msg, dict):
            started = (line.msg.get("result") or {}) if "result" in line.msg else {}
            name = started.get("processId") if isinstance(started, dict) else None
            while name is not None and at and _tells_of(found[at - 1], line.conn, name):
                at -= 1
        found.insert(at, line)
    return found


def _tells_of(line: Line, conn: str, process_id: str) -> bool:
    if line.kind != "s2c" or line.conn != conn or not isinstance(line.msg, dict) or "id" in line.msg:
        return False
    return bool(line.msg.get("params", {}).get("processId") == process_id)


def _line(number: int, record: dict[str, Any], seen: dict[tuple[str, str], int]) -> Line:
    kind = record.get("dir") or next(k for k in ("note", "cli", "http", "path") if k in record)
    msg = record.get("msg")
    if kind in KINDS and "note" not in record:
        return _line(number, _in_braces(record, KINDS[kind]), seen)
    conn = record.get("conn", "stdio" if kind.endswith("-line") else "")
    key = ""
    if isinstance(msg, dict) and "id" in msg:
        base = f"{conn}:{msg['id']}"
        count = seen[kind, base] = seen.get((kind, base), 0) + 1
        key = base if count == 1 else f"{base}#{count}"
    note = record.get("note", record.get("note2", ""))
    return Line(number, kind, conn, key, msg, record.get("raw"), note, record if kind not in MESSAGES else {})


def _in_braces(record: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a line of `newest/` in the form of the other transcripts."""
    told = record.get("msg")
    if kind == "note" or not isinstance(told, dict):
        return {"note": told.get("note", "") if isinstance(told, dict) else "", **record, "dir": "note"}
    return {"dir": kind, "conn": record.get("conn", "a"), "msg": _with_braces(record["msg"])}


def _with_braces(value: Json, name: str = "") -> Json:
    if isinstance(value, dict):
        return {key: _with_braces(member, key) for key, member in value.items()}
    if isinstance(value, list):
        return [_with_braces(item) for item in value]
    if not isinstance(value, str):
        return value
    inside = decoded(value) if name in BASE64_MEMBERS else None
    if inside is not None:
        return base64.b64encode(_with_braces(inside).encode("latin-1")).decode()
    return RECORDED_NAMES.sub(_brace, value)


def _brace(found: re.Match[str]) -> str:
    name = found[0].removeprefix("/")
    return f"{{{name}}}" if name.isupper() else "{HEX}"


def decoded(value: str) -> str | None:
    """Return the text inside a base64 value, bytes as Latin-1 characters; None when it is not base64."""
    try:
        return base64.b64decode(value, validate=True).decode("latin-1")
    except (binascii.Error, ValueError):
        return None


class Bindings:
    """This run's values for the placeholders of a transcript."""

    def __init__(self, values: dict[str, str], cuts: dict[str, str] | None = None) -> None:
        """Take the values of the placeholders, and the whole texts of those that were cut short."""
        self.values = dict(values)
        self.cuts = cuts or {}

    def fill(self, value: Json) -> Json:
        """Put values in for the placeholders of a message that is to be sent."""
        if isinstance(value, dict):
            return {self.fill(k): self.fill(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.fill(v) for v in value]
        if isinstance(value, str):
            value = self.cuts.get(value, value)
            return PLACEHOLDER.sub(
                lambda found: self.values.get(found[1], SENT.get(found[1], found[0])), value
            )
        return value

    def fill_bytes(self, value: str) -> bytes:
        """Return the bytes of a recorded base64 value, placeholders inside it replaced."""
        text = decoded(value)
        assert text is not None, value
        return str(self.fill(text)).encode("latin-1")

    def pattern(self, text: str) -> re.Pattern[str]:
        """Return the pattern that a live string must match in full."""
        parts = PLACEHOLDER.split(text)
        out = []
        for index, part in enumerate(parts):
            if index % 2 == 0:
                out.append(re.escape(part))
            elif part in self.values:
                out.append(re.escape(self.values[part]))
            else:
                out.append(f"(?:{FREE[part]})" if part in FREE else re.escape("{" + part + "}"))
        return re.compile("".join(out))

    def compare(self, expected: Json, actual: Json, where: str = "") -> Iterator[str]:
        """Yield how a live value differs from the recorded one: values, members, their order."""
        if isinstance(expected, dict) and isinstance(actual, dict):
            if list(expected) != list(actual):
                yield f"{where or 'message'}: members {list(actual)} instead of {list(expected)}"
            for name in expected.keys() & actual.keys():
                yield from self.compare(expected[name], actual[name], f"{where}.{name}" if where else name)
        elif isinstance(expected, list) and isinstance(actual, list):
            if len(expected) != len(actual):
                yield f"{where}: {len(actual)} elements instead of {len(expected)}: {actual}"
            for index, (left, right) in enumerate(zip(expected, actual, strict=False)):
                yield from self.compare(left, right, f"{where}[{index}]")
        elif isinstance(expected, str) and "{" in expected and isinstance(actual, (str, int)):
            if not self.pattern(expected).fullmatch(str(actual)):
                yield f"{where}: {actual!r} instead of {expected!r}"
        elif isinstance(expected, str) and where.rpartition(".")[2] in BASE64_MEMBERS:
            yield from self._compare_base64(expected, actual, where)
        elif type(expected) is not type(actual) or expected != actual:
            yield f"{where}: {actual!r} instead of {expected!r}"

    def _compare_base64(self, expected: str, actual: Json, where: str) -> Iterator[str]:
        inside = decoded(expected)
        got = decoded(actual) if isinstance(actual, str) else None
        if inside is None or got is None:
            if expected != actual:
                yield f"{where}: {actual!r} instead of {expected!r}"
        elif not self.pattern(inside).fullmatch(got):
            yield f"{where}: {got!r} instead of {inside!r}"
