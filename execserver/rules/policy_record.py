"""A policy as bytes and back: what the server hands to the supervisor of a shell call.

The form is private to one version of the program.  Decoding is strict and bounded: every length is checked
against what is left, every value against the known ones, and nothing may follow; all else is a
PolicyRecordError.
"""

from __future__ import annotations

import struct

from execserver.rules.policy import ALLOW, FORBIDDEN, HostExecutable, Policy, Rule

MAX_POLICY_BYTES = 16 * 1024 * 1024
MAX_ITEMS = 65536  # of one kind in one place: rules, words of a pattern, alternatives, paths

_MAGIC = b"rules1"
_COUNT = struct.Struct("<I")
_RULE = struct.Struct("<BB")  # decision, has a justification


class PolicyRecordError(Exception):
    """The bytes are no policy, or the policy does not fit into them."""


def encode_policy(policy: Policy) -> bytes:
    """Return the policy as bytes.  Raises PolicyRecordError if it is larger than a policy may be."""
    parts = [_MAGIC]
    _put_count(parts, len(policy.rules))
    for rule in policy.rules:
        parts.append(_RULE.pack(rule.decision, rule.justification is not None))
        _put_text(parts, rule.where)
        if rule.justification is not None:
            _put_text(parts, rule.justification)
        _put_count(parts, len(rule.pattern))
        for choices in rule.pattern:
            _put_texts(parts, choices)
    _put_count(parts, len(policy.executables))
    for executable in policy.executables:
        _put_text(parts, executable.name)
        _put_texts(parts, executable.paths)
    data = b"".join(parts)
    if len(data) > MAX_POLICY_BYTES:
        raise PolicyRecordError(f"the rules take {len(data)} bytes, more than {MAX_POLICY_BYTES}")
    return data


def decode_policy(data: bytes) -> Policy:
    """Return the policy of some bytes.  Raises PolicyRecordError for all that `encode_policy` never makes."""
    if len(data) > MAX_POLICY_BYTES or data[: len(_MAGIC)] != _MAGIC:
        raise PolicyRecordError("the bytes are no policy")
    reader = _Reader(data, len(_MAGIC))
    rules = [reader.rule() for _ in range(reader.count())]
    executables = [HostExecutable(reader.text(), reader.texts()) for _ in range(reader.count())]
    reader.end()
    return Policy(rules, executables)


def _put_count(parts: list[bytes], count: int) -> None:
    if count > MAX_ITEMS:
        raise PolicyRecordError(f"{count} items in one place of the rules are more than {MAX_ITEMS}")
    parts.append(_COUNT.pack(count))


def _put_text(parts: list[bytes], text: str) -> None:
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise PolicyRecordError(f"{text!r} is neither text nor bytes") from None
    parts += (_COUNT.pack(len(data)), data)


def _put_texts(parts: list[bytes], texts: tuple[str, ...]) -> None:
    _put_count(parts, len(texts))
    for text in texts:
        _put_text(parts, text)


class _Reader:
    """Takes values off some bytes, from the front."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data = data
        self._place = start

    def _take(self, length: int) -> bytes:
        start, self._place = self._place, self._place + length
        if self._place > len(self._data):
            raise PolicyRecordError("the policy is cut off")
        return self._data[start : self._place]

    def count(self) -> int:
        """Return how many items follow."""
        count: int = _COUNT.unpack(self._take(_COUNT.size))[0]
        if count > MAX_ITEMS:
            raise PolicyRecordError(f"{count} items are more than {MAX_ITEMS}")
        return count

    def text(self) -> str:
        """Return one text."""
        length: int = _COUNT.unpack(self._take(_COUNT.size))[0]
        return self._take(length).decode("utf-8", "surrogateescape")

    def texts(self) -> tuple[str, ...]:
        """Return a counted list of texts."""
        return tuple(self.text() for _ in range(self.count()))

    def rule(self) -> Rule:
        """Return one rule."""
        decision, is_justified = _RULE.unpack(self._take(_RULE.size))
        if not ALLOW <= decision <= FORBIDDEN or is_justified > 1:
            raise PolicyRecordError("a rule of the policy has an unknown decision")
        where = self.text()
        justification = self.text() if is_justified else None
        pattern = tuple(self.texts() for _ in range(self.count()))
        if not pattern or not all(pattern):
            raise PolicyRecordError("a rule of the policy has an empty pattern")
        return Rule(pattern, decision, where, justification)

    def end(self) -> None:
        """Refuse what follows the last value."""
        if self._place != len(self._data):
            raise PolicyRecordError("something follows the policy")
