"""What is wrong with a text that is not JSON, in the words of the reference server's parser.

Used for malformed messages only.  A reason has the line and the column of the last byte that was examined,
both counted from 1 (wire contract, section 4).  Long texts get a plain reason: finding the place in Python
would delay all other connections.
"""

from __future__ import annotations

import re
from typing import NoReturn

EXPLAINED_BYTES = 64 * 1024
NESTING_LIMIT = 128  # the array or object that reaches this depth is refused

_SPACE = re.compile(rb"[ \t\r\n]*")
_DIGITS = re.compile(rb"[0-9]*")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
_HEX4 = re.compile(rb"[0-9A-Fa-f]{4}")
_IDENTS = {ord("n"): b"ull", ord("t"): b"rue", ord("f"): b"alse"}
_LIST, _OBJECT = ord("["), ord("{")
_END = -1  # in place of a byte behind the last one
_EXPONENT = tuple(b"eE")
_SIGNS = tuple(b"+-")


class Damage(Exception):
    """Why a text is not JSON; `value_end` is the end of a whole value with something else behind it."""

    def __init__(self, reason: str, value_end: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.value_end = value_end


def find_damage(data: bytes) -> Damage:
    """Return the reason why the decoder refused a text."""
    if len(data) > EXPLAINED_BYTES:
        return Damage(f"invalid JSON in a message of {len(data)} bytes")
    try:
        _Scanner(data).document()
    except Damage as damage:
        return damage.with_traceback(None)  # a frame of the traceback refers to it: a reference cycle
    return Damage("invalid JSON")


class _Scanner:
    """Reads one JSON text without building values; nesting is kept on a list, not on the call stack."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.open: list[int] = []

    def document(self) -> None:
        """Raise Damage for the first error."""
        self.value()
        while self.open:
            self.next_item()
        end = self.at
        if self.peek() != _END:
            raise Damage(self.placed("trailing characters", self.at + 1), end)

    def value(self) -> None:
        """Read one scalar, or the opening of a list or an object and its first value."""
        byte = self.peek()
        if byte == _END:
            self.fail_here("EOF while parsing a value")
        elif byte in _IDENTS:
            self.ident(_IDENTS[byte])
        elif byte == ord("-") or 48 <= byte <= 57:
            self.number()
        elif byte == ord('"'):
            self.string()
        elif byte in (_LIST, _OBJECT):
            self.opening(byte)
        else:
            self.fail_here("expected value")

    def opening(self, byte: int) -> None:
        if len(self.open) + 1 >= NESTING_LIMIT:
            self.fail_here("recursion limit exceeded")
        self.at += 1
        self.open.append(byte)
        if self.peek() == byte + 2:  # `]` and `}` follow their opening two places later in ASCII
            self.at += 1
            self.open.pop()
        elif byte == _OBJECT:
            if self.peek() == _END:
                self.fail_here("EOF while parsing an object")
            self.member()
        elif self.peek() == _END:
            self.fail_here("EOF while parsing a list")
        else:
            self.value()

    def next_item(self) -> None:
        """Read a comma and the value behind it, or the end of the innermost list or object."""
        inside = self.open[-1]
        byte = self.peek()
        if byte == inside + 2:
            self.at += 1
            self.open.pop()
            return
        if byte != ord(","):
            self.fail_here(self.unclosed(inside, byte))
        self.at += 1
        byte = self.peek()
        if byte == inside + 2:
            self.fail_here("trailing comma")
        if inside == _LIST:
            self.value()
        else:
            self.member()

    @staticmethod
    def unclosed(inside: int, byte: int) -> str:
        if inside == _LIST:
            return "EOF while parsing a list" if byte == _END else "expected `,` or `]`"
        return "EOF while parsing an object" if byte == _END else "expected `,` or `}`"

    def member(self) -> None:
        byte = self.peek()
        if byte == _END:
            self.fail_here("EOF while parsing a value")
        if byte != ord('"'):
            self.fail_here("key must be a string")
        self.string()
        byte = self.peek()
        if byte == _END:
            self.fail_here("EOF while parsing an object")
        if byte != ord(":"):
            self.fail_here("expected `:`")
        self.at += 1
        self.value()

    def ident(self, rest: bytes) -> None:
        self.at += 1
        for wanted in rest:
            if self.take() != wanted:
                self.fail_behind("expected ident")

    def number(self) -> None:
        if self.data[self.at] == ord("-"):
            self.at += 1
        first = self.take()
        if not 48 <= first <= 57:
            self.fail_behind("invalid number")
        if first == 48:
            if 48 <= self.byte() <= 57:
                self.fail_here("invalid number")
        else:
            self.skip(_DIGITS)
        if self.byte() == ord("."):
            self.at += 1
            if not self.skip(_DIGITS):
                self.fail_here("EOF while parsing a value" if self.byte() == _END else "invalid number")
        if self.byte() in _EXPONENT:
            self.exponent()

    def exponent(self) -> None:
        self.at += 1
        if self.byte() in _SIGNS:
            self.at += 1
        if not 48 <= self.take() <= 57:
            self.fail_behind("invalid number")
        self.skip(_DIGITS)

    def string(self) -> None:
        start = self.at + 1
        self.at = start
        while True:
            self.skip(_PLAIN)
            byte = self.byte()
            if byte == _END:
                self.fail_here("EOF while parsing a string")
            self.at += 1
            if byte == ord('"'):
                return self.check_text(start)
            if byte != ord("\\"):
                self.fail_behind("control character (\\u0000-\\u001F) found while parsing a string")
            self.escape()

    def check_text(self, start: int) -> None:
        try:
            self.data[start : self.at].decode()
        except UnicodeDecodeError:
            self.fail_behind("invalid unicode code point")

    def escape(self) -> None:
        byte = self.take("EOF while parsing a string")
        if byte != ord("u"):
            if byte not in b'"\\/bfnrt':
                self.fail_behind("invalid escape")
            return
        unit = self.hex4()
        if 0xDC00 <= unit <= 0xDFFF:
            self.fail_behind("lone leading surrogate in hex escape")
        if 0xD800 <= unit <= 0xDBFF:
            for wanted in b"\\u":
                if self.take("EOF while parsing a string") != wanted:
                    self.fail_behind("unexpected end of hex escape")
            if not 0xDC00 <= self.hex4() <= 0xDFFF:
                self.fail_behind("lone leading surrogate in hex escape")

    def hex4(self) -> int:
        if len(self.data) - self.at < 4:
            self.at = len(self.data)
            self.fail_behind("EOF while parsing a string")
        digits = self.data[self.at : self.at + 4]
        self.at += 4
        if _HEX4.fullmatch(digits) is None:
            self.fail_behind("invalid escape")
        return int(digits, 16)

    def peek(self) -> int:
        """Skip white space and return the next byte, without reading it."""
        self.skip(_SPACE)
        return self.byte()

    def byte(self) -> int:
        return self.data[self.at] if self.at < len(self.data) else _END

    def take(self, at_end: str = "EOF while parsing a value") -> int:
        byte = self.byte()
        if byte == _END:
            self.fail_behind(at_end)
        self.at += 1
        return byte

    def skip(self, pattern: re.Pattern[bytes]) -> int:
        match = pattern.match(self.data, self.at)
        assert match is not None  # the patterns match the empty text
        self.at = match.end()
        return len(match.group())

    def fail_here(self, reason: str) -> NoReturn:
        """Refuse the next byte."""
        raise Damage(self.placed(reason, min(self.at + 1, len(self.data))))

    def fail_behind(self, reason: str) -> NoReturn:
        """Refuse the byte that was read last."""
        raise Damage(self.placed(reason, self.at))

    def placed(self, reason: str, seen: int) -> str:
        """Return a reason with the line and column of byte number `seen`, counted from 1."""
        before = self.data[:seen]
        column = len(before) - (before.rfind(b"\n") + 1)
        return f"{reason} at line {before.count(10) + 1} column {column}"
