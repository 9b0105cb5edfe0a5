"""The chain that an audit log is: each record names the digest of the line before it.  Pure.

A record is one line of JSON with a number, a time, an event, and last `prev`, the SHA-256 of the line before
(of `GENESIS` for the first).  The digest of the newest line is the *head*.  Who changes, removes or inserts a
line breaks the chain at that place; who rewrites everything behind a line, or cuts the end off, is found out
by a head that was kept elsewhere.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GENESIS = "0" * 64
MAX_LINE_BYTES = 64 * 1024
# Characters of one text and words of one list in a record: what is longer is cut, and says so.  A character
# takes up to 12 bytes, and words are of the caller, so each row is for what is too long with the one before.
_BOUNDS = ((2048, 64), (100, 64), (40, 16))
_PREVIOUS = re.compile(rb',"prev":"([0-9a-f]{64})"\}')
_PREVIOUS_BYTES = len(',"prev":""}') + 64
_MOST = MAX_LINE_BYTES - _PREVIOUS_BYTES


class Broken(Exception):
    """A line does not belong where it stands; the text says why."""


def line_of(
    number: int,
    at: str,
    event: str,
    members: Mapping[str, object],
    previous: str,
    encode: Callable[[object], str] | None = None,
) -> bytes:
    """Return a record as a line, without its line end; `encode` does what `json_text` does."""
    begin = {"n": number, "at": at, "event": event}
    text = (encode or json_text)({**begin, **members}) if _is_within(members, *_BOUNDS[0]) else ""
    if not text or len(text) > _MOST:
        text = _bounded_json(begin, members)
    return f'{text[:-1]},"prev":"{previous}"}}'.encode()


def line_around(number: int, at: str, members: str, previous: str) -> bytes:
    """Return the same of members, the event first, that are JSON within all bounds already."""
    return f'{{"n":{number},"at":"{at}",{members},"prev":"{previous}"}}'.encode()


def digest_of(line: bytes) -> str:
    """Return the digest of a line, without its line end."""
    return sha256(line).hexdigest()


def record_of(line: bytes) -> dict[str, object]:
    """Return the members of a line.  Raises Broken."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise Broken("it is no JSON") from None
    if not isinstance(record, dict) or not isinstance(record.get("n"), int) or "event" not in record:
        raise Broken("it is no record")
    return record


class Checker:
    """Follows a chain, line by line."""

    def __init__(self) -> None:
        self.head = GENESIS
        self.number = 0  # of the newest record; the first one has 1
        self.first = 0  # the number that the log begins with: older files may have been removed
        self._begun = False

    def follow(self, line: bytes) -> dict[str, object]:
        """Take the next line and return its record.  Raises Broken."""
        found = _PREVIOUS.fullmatch(line[-_PREVIOUS_BYTES:])
        if found is None:
            raise Broken("it does not end with the digest of the line before")
        record = record_of(line)
        previous, number = found[1].decode(), record["n"]
        assert isinstance(number, int)
        if not self._begun:
            if (number == 1) != (previous == GENESIS):
                raise Broken("it is no beginning")
            self.first, self._begun = number, True
        elif previous != self.head:
            raise Broken("the line before it is not the one that it followed")
        elif number != self.number + 1:
            raise Broken(f"its number is {number}, behind {self.number}")
        self.head, self.number = digest_of(line), number
        return record


# Makes JSON of printable ASCII only: what is shown obeys no words, and no reader wonders where a line ends.
json_text = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


def _bounded_json(begin: dict[str, object], members: Mapping[str, object]) -> str:
    body = {**begin, **members}
    for bounds in _BOUNDS:
        text = json_text(bounded(body, *bounds))
        if len(text) <= _MOST:
            return text
    return json_text({**begin, "cut": True})


def _is_within(members: Mapping[str, object], most: int, words: int) -> bool:
    """Return whether `bounded` surely changes nothing; most records are such, and need no copy."""
    for value in members.values():
        if isinstance(value, str):
            if len(value) > most:
                return False
        elif isinstance(value, list):
            if len(value) > words:
                return False
            for each in value:
                if not isinstance(each, str) or len(each) > most:
                    return False
        elif isinstance(value, dict | tuple):
            return False
    return True


def bounded(value: object, most: int, words: int) -> object:
    """Return a value without texts and lists beyond the bounds."""
    if isinstance(value, str):
        return value if len(value) <= most else f"{value[:most]}... ({len(value)} characters)"
    if isinstance(value, dict):
        return {name: bounded(each, most, words) for name, each in value.items()}
    if isinstance(value, list | tuple):
        kept: list[object] = [bounded(each, most, words) for each in value[:words]]
        return kept if len(value) <= words else [*kept, f"... ({len(value)} items)"]
    return value
