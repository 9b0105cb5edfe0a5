"""What a page sends, checked: one call, and its params by name.  Pure."""

from __future__ import annotations

import json
from typing import Any, Final

from execserver.box.web.failing import WRONG, CallFailed

_LARGEST_ID: Final = 2**53
_LONGEST_TEXT: Final = 64 * 1024
_LONGEST_PATH: Final = 4096
_MOST_WORDS: Final = 4096


class Broken(Exception):
    """A message that is no call."""


def parsed(message: bytes) -> tuple[int, str, dict[str, Any]]:
    """Return id, method and params of a call.  Raises Broken."""
    try:
        call = json.loads(message)
    except (ValueError, RecursionError):
        raise Broken("a message is no JSON") from None
    if not isinstance(call, dict):
        raise Broken("a message is no object")
    call_id, method, params = call.get("id"), call.get("method"), call.get("params", {})
    if not isinstance(call_id, int) or isinstance(call_id, bool) or not 0 <= call_id < _LARGEST_ID:
        raise Broken("a message has no id")
    if not isinstance(method, str) or not isinstance(params, dict):
        raise Broken("a message is no call")
    return call_id, method, params


class Params:
    """The params of one call.  Every method raises CallFailed for a param of another kind."""

    def __init__(self, members: dict[str, Any]) -> None:
        self._members = members

    def text(self, name: str, longest: int = _LONGEST_TEXT) -> str:
        """Return a text that must be there."""
        return _there(name, self.maybe_text(name, longest))

    def path(self, name: str) -> str:
        """Return a path that must be there; `maybe_path` says what is one."""
        return _there(name, self.maybe_path(name))

    def maybe_text(self, name: str, longest: int = _LONGEST_TEXT) -> str | None:
        """Return a text, None if it is null or not there."""
        found = self._members.get(name)
        if found is not None and not _is_text(found, longest, "strict"):
            raise _wrong(name, f"is no text of at most {longest} characters")
        return found

    def maybe_path(self, name: str) -> str | None:
        """Return a text in which lone surrogates stand for bytes, None if it is null or not there."""
        found = self._members.get(name)
        if found is not None and not _is_text(found, _LONGEST_PATH, "surrogateescape"):
            raise _wrong(name, f"is no path of at most {_LONGEST_PATH} characters")
        return found

    def number(self, name: str, least: int, most: int) -> int:
        """Return a whole number within limits."""
        found = self._members.get(name)
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            raise _wrong(name, f"is no number from {least} to {most}")
        return found

    def maybe_number(self, name: str, least: int, most: int) -> int | None:
        """Return a whole number within limits, None if it is null or not there."""
        return None if self._members.get(name) is None else self.number(name, least, most)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        found = self._members.get(name, default)
        if not isinstance(found, bool):
            raise _wrong(name, "is neither true nor false")
        return found

    def words(self, name: str) -> list[str] | None:
        """Return a list of texts, not empty; None if it is null or not there."""
        found = self._members.get(name)
        if found is None:
            return None
        fits = isinstance(found, list) and 0 < len(found) <= _MOST_WORDS
        if not fits or not all(_is_text(word, _LONGEST_TEXT, "strict") for word in found):
            raise _wrong(name, "is no list of texts")
        return list(found)

    def has(self, name: str) -> bool:
        """Tell whether a param is there, also as null."""
        return name in self._members

    def value(self, name: str) -> object:
        """Return a param as it came."""
        return self._members.get(name)


def _there(name: str, found: str | None) -> str:
    if found is None:
        raise _wrong(name, "is missing")
    return found


def _is_text(value: object, longest: int, errors: str) -> bool:
    """Tell whether a value is a text that can be sent on: JSON can hold halves of characters."""
    if not isinstance(value, str) or len(value) > longest:
        return False
    try:
        value.encode("utf-8", errors)
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _wrong(name: str, what: str) -> CallFailed:
    return CallFailed(f"{name} {what}", WRONG)
