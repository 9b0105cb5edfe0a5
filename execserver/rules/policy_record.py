"""A policy as bytes and back: what the server passes to the exec supervisor of a shell call.

    magic, how many numbers and texts follow; the numbers; the length of each text; the texts

Numbers and texts are in the order in which rules and programs are read, so a supervisor, which decodes them
at every call, only walks along two sequences.  The format is private to one version of the program.  Decoding
is strict and bounded: every count is checked against what is there, every value against the known ones, and
nothing may be left over; anything else raises PolicyRecordError.
"""

from __future__ import annotations

import struct

from execserver.rules.policy import ALLOW, FORBIDDEN, HostExecutable, Policy, Rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_POLICY_BYTES = 16 * 1024 * 1024

_MAGIC = b"rules2"
_HEAD = struct.Struct("<6sII")
_NUMBER_BYTES = 4


class PolicyRecordError(Exception):
    """The bytes are not a policy, or the policy is too large for a record."""


def encode_policy(policy: Policy) -> bytes:
    """Return the policy as bytes.  Raises PolicyRecordError if they exceed MAX_POLICY_BYTES."""
    numbers = [len(policy.rules)]
    texts: list[str] = []
    for rule in policy.rules:
        numbers += (rule.decision, rule.justification is not None, len(rule.pattern))
        texts.append(rule.where)
        if rule.justification is not None:
            texts.append(rule.justification)
        for choices in rule.pattern:
            numbers.append(len(choices))
            texts += choices
    for executable in policy.executables:
        numbers.append(len(executable.paths))
        texts += (executable.name, *executable.paths)
    encoded = [_encoded(text) for text in texts]
    numbers += map(len, encoded)
    body = struct.pack(f"<{len(numbers)}I", *numbers)
    data = _HEAD.pack(_MAGIC, len(numbers) - len(texts), len(texts)) + body + b"".join(encoded)
    if len(data) > MAX_POLICY_BYTES:
        raise PolicyRecordError(f"the rules take {len(data)} bytes, more than {MAX_POLICY_BYTES}")
    return data


def decode_policy(data: bytes) -> Policy:
    """Return the encoded policy.  Raises PolicyRecordError for bytes that `encode_policy` never makes."""
    if len(data) < _HEAD.size or len(data) > MAX_POLICY_BYTES or not data.startswith(_MAGIC):
        raise PolicyRecordError("the bytes are no policy")
    _, number_count, text_count = _HEAD.unpack_from(data)
    start = _HEAD.size + (number_count + text_count) * _NUMBER_BYTES
    if start > len(data):
        raise PolicyRecordError("the policy is cut off")
    numbers = struct.unpack_from(f"<{number_count + text_count}I", data, _HEAD.size)
    texts = _texts(data, start, numbers[number_count:])
    return _RecordReader(numbers[:number_count], texts).policy()


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise PolicyRecordError(f"{text!r} is neither text nor bytes") from None


def _texts(data: bytes, start: int, lengths: Sequence[int]) -> list[str]:
    texts = []
    for length in lengths:
        texts.append(data[start : start + length].decode("utf-8", "surrogateescape"))
        start += length
    if start != len(data):
        raise PolicyRecordError("the texts of the policy have other lengths")
    return texts


class _RecordReader:
    """Reads both sequences from their beginnings."""

    def __init__(self, numbers: Sequence[int], texts: Sequence[str]) -> None:
        self._numbers = numbers
        self._texts = texts
        self._number = self._text = 0

    def policy(self) -> Policy:
        """Return the policy that both sequences encode."""
        try:
            rules = [self._rule() for _ in range(self._next_number())]
            executables = []
            while self._number < len(self._numbers):
                executables.append(HostExecutable(self._next_text(), self._next_texts()))
        except IndexError:
            raise PolicyRecordError("the policy is cut off") from None
        if self._text != len(self._texts):
            raise PolicyRecordError("something follows the policy")
        return Policy(rules, executables)

    def _rule(self) -> Rule:
        decision, is_justified = self._next_number(), self._next_number()
        if not ALLOW <= decision <= FORBIDDEN or is_justified > 1:
            raise PolicyRecordError("a rule of the policy has an unknown decision")
        length = self._next_number()
        where = self._next_text()
        justification = self._next_text() if is_justified else None
        pattern = tuple([self._next_texts() for _ in range(length)])
        if not pattern or not all(pattern):
            raise PolicyRecordError("a rule of the policy has an empty pattern")
        return Rule(pattern, decision, where, justification)

    def _next_number(self) -> int:
        self._number += 1
        return self._numbers[self._number - 1]

    def _next_text(self) -> str:
        self._text += 1
        return self._texts[self._text - 1]

    def _next_texts(self) -> tuple[str, ...]:
        """Return as many texts as the next number says."""
        start = self._text
        self._text += self._next_number()
        if self._text > len(self._texts):
            raise PolicyRecordError("the policy is cut off")
        return tuple(self._texts[start : self._text])
