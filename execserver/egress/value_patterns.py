"""Patterns of credentials: whether a value is one, and random values of the same shape.

A small part of regular expressions: characters, classes, groups, alternatives and repetitions, over whole
values.  Clients send them, so nothing here backtracks: the time is bounded by the sizes of both.
"""

from __future__ import annotations

import string

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    # Returns a number below its argument.
    Draw = Callable[[int], int]

MAX_PATTERN = 2048
MAX_VALUE = 2048  # of what is matched and made
MAX_REPEAT = 512
# Steps for all credentials of a process, some 0.2 s; real patterns need a few for each character.
MAX_EFFORT = 2_000_000
_MATCH_STEPS = 10  # what a match costs at least
MAX_NODES = 4096  # repetitions counted as often as they repeat at least
_OPEN_END = 32  # how often an unbounded repetition is repeated in a sample, beyond its least
_FEW = 8
_MAX_DEPTH = 32
# What a sample has where a pattern leaves it open: nothing that a shell or a header would not take as it is.
_PREFERRED = frozenset(string.ascii_letters + string.digits)
_HIGHEST = 0x7E  # no value has a character beyond: more of a range would only cost time and memory
_PRINTABLE = frozenset(map(chr, range(0x20, _HIGHEST + 1)))
_DIGITS = frozenset(string.digits)
_WORDS = _PREFERRED | {"_"}
_BLANKS = frozenset(" \t\n\r\f\v")
_CLASSES = {"d": _DIGITS, "w": _WORDS, "s": _BLANKS}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r"}


class TooMuch(Exception):
    """What was asked for takes longer than others may have to wait."""


class BadPattern(ValueError):
    """The pattern cannot be used; the text says why."""


class Effort:
    """What matches and samples may cost together: patterns of a client must not hold up the others."""

    __slots__ = ("_left",)

    def __init__(self, steps: int = MAX_EFFORT) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Count steps.  Raises TooMuch once there were too many."""
        self._left -= steps
        if self._left < 0:
            raise TooMuch


class _Node:
    """A part of a pattern."""

    __slots__ = ()

    def ends(self, text: str, starts: set[int], effort: Effort) -> set[int]:
        """Return where matches that begin at any of `starts` can end.  Raises TooMuch."""
        raise NotImplementedError

    def sample(self, draw: Draw) -> str:
        """Return a random text that matches."""
        raise NotImplementedError


class _One(_Node):
    """One character of a set, or outside of it."""

    __slots__ = ("_chars", "_chosen", "_negated")

    def __init__(self, chars: frozenset[str], *, negated: bool = False) -> None:
        self._chars = chars
        self._negated = negated
        self._chosen: list[str] = []

    def ends(self, text: str, starts: set[int], effort: Effort) -> set[int]:
        effort.spend(len(starts) + 1)
        return {at + 1 for at in starts if at < len(text) and (text[at] in self._chars) != self._negated}

    def sample(self, draw: Draw) -> str:
        chosen = self._chosen or self._choose()
        return chosen[draw(len(chosen))]

    def _choose(self) -> list[str]:
        possible = _PRINTABLE - self._chars if self._negated else _PRINTABLE & self._chars
        preferred = possible & _PREFERRED
        self._chosen = sorted(preferred if len(preferred) >= _FEW else possible)
        if not self._chosen:
            raise BadPattern("a class matches nothing that could be written")
        return self._chosen


class _Sequence(_Node):
    __slots__ = ("_parts",)

    def __init__(self, parts: list[_Node]) -> None:
        self._parts = parts

    def ends(self, text: str, starts: set[int], effort: Effort) -> set[int]:
        for part in self._parts:
            starts = part.ends(text, starts, effort)
        return starts

    def sample(self, draw: Draw) -> str:
        return "".join([part.sample(draw) for part in self._parts])


class _Choice(_Node):
    __slots__ = ("_parts",)

    def __init__(self, parts: list[_Node]) -> None:
        self._parts = parts

    def ends(self, text: str, starts: set[int], effort: Effort) -> set[int]:
        effort.spend(len(self._parts) * (len(starts) + 1))  # empty ones spend nothing themselves
        return set().union(*(part.ends(text, starts, effort) for part in self._parts))

    def sample(self, draw: Draw) -> str:
        return self._parts[draw(len(self._parts))].sample(draw)


class _Repeat(_Node):
    __slots__ = ("_least", "_most", "_part")

    def __init__(self, part: _Node, least: int, most: int | None) -> None:
        self._part = part
        self._least = least
        self._most = most

    def ends(self, text: str, starts: set[int], effort: Effort) -> set[int]:
        for _ in range(self._least):
            starts = self._part.ends(text, starts, effort)
        found, fresh, left = set(starts), starts, self._most
        while fresh and (left is None or left > self._least):
            fresh = self._part.ends(text, fresh, effort) - found
            found |= fresh
            left = None if left is None else left - 1
        return found

    def sample(self, draw: Draw) -> str:
        most = self._least + _OPEN_END
        times = most if self._most is None else min(most, self._most)
        if times - self._least < _FEW:
            times = self._least + draw(times - self._least + 1)
        made = ""
        for _ in range(times):
            made += self._part.sample(draw)
            if len(made) > MAX_VALUE:
                raise BadPattern("its values are too long")
        return made


class ValuePattern:
    """One pattern of whole values."""

    def __init__(self, text: str) -> None:
        """Read a pattern.  Raises BadPattern."""
        if len(text) > MAX_PATTERN:
            raise BadPattern(f"it is longer than {MAX_PATTERN} characters")
        self._root = _Parser(text).whole()
        try:
            is_empty = self.matches("", Effort())
        except TooMuch:
            raise BadPattern("matching takes too long") from None
        if is_empty:
            raise BadPattern("it matches an empty value")

    def matches(self, value: str, effort: Effort) -> bool:
        """Return whether the whole value is one of this pattern's.

        Raises TooMuch if that takes more than is left of the effort.
        """
        effort.spend(_MATCH_STEPS)
        return len(value) <= MAX_VALUE and len(value) in self._root.ends(value, {0}, effort)

    def sample(self, draw: Draw) -> str:
        """Return a random value.  Raises BadPattern where none can be made."""
        made = self._root.sample(draw)
        if len(made) > MAX_VALUE:
            raise BadPattern("its values are too long")
        return made


class _Parser:
    """Reads one pattern from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._nodes = 0

    def whole(self) -> _Node:
        """Return the pattern; anchors at its ends say what is so anyway.  Raises BadPattern."""
        self._text = self._text.removeprefix("^")
        if self._text.endswith("$") and not self._text.endswith("\\$"):
            self._text = self._text[:-1]
        root = self._choice()
        if self._at < len(self._text):
            raise BadPattern("a bracket is closed that is not open")
        return root

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise BadPattern("it ends too early")
        self._at += 1
        return char

    def _takes(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _choice(self) -> _Node:
        parts = [self._sequence()]
        while self._takes("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else _Choice(parts)

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated())
        return _Sequence(parts)

    def _repeated(self) -> _Node:
        before = self._nodes
        part = self._atom()
        counts = self._counts()
        if counts is None:
            return part
        self._takes("?")  # lazy or not, the whole value is meant
        least, most = counts
        if (most is not None and most < least) or max(least, most or 0) > MAX_REPEAT:
            raise BadPattern(f"a repetition is turned round or above {MAX_REPEAT}")
        if self._counts() is not None:
            raise BadPattern("a repetition is repeated")
        self._count((self._nodes - before) * (max(least, most or 0)))
        return _Repeat(part, least, most)

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise BadPattern("it is too large")

    def _counts(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._takes(sign):
                return counts
        if not self._takes("{"):
            return None
        inside, closed, _ = self._text[self._at :].partition("}")
        least, comma, most = inside.partition(",")
        if not closed or not _is_number(least) or (most and not _is_number(most)):
            raise BadPattern("a count cannot be read")
        self._at += len(inside) + 1
        if not comma:
            return int(least), int(least)
        return int(least), int(most) if most else None

    def _atom(self) -> _Node:
        self._count(1)
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return self._class()
        if char == ".":
            return _One(frozenset("\n"), negated=True)
        if char == "\\":
            chars, negated = self._escape()
            return _One(chars, negated=negated)
        if char in "*+?{^$":
            raise BadPattern(f"`{char}` stands where it cannot be understood")
        return _One(frozenset(char))

    def _group(self) -> _Node:
        if self._takes("?") and not self._takes(":"):
            raise BadPattern("groups with `(?` other than `(?:` are not understood")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise BadPattern("its groups are too deep")
        inner = self._choice()
        self._depth -= 1
        if not self._takes(")"):
            raise BadPattern("a group is not closed")
        return inner

    def _escape(self) -> tuple[frozenset[str], bool]:
        char = self._next()
        if char.lower() in _CLASSES:
            return _CLASSES[char.lower()], char.isupper()
        if char in _CONTROLS:
            return frozenset(_CONTROLS[char]), False
        if char.isalnum():
            raise BadPattern(f"`\\{char}` is not understood")
        return frozenset(char), False

    def _class(self) -> _Node:
        negated = self._takes("^")
        chars: set[str] = set()
        first = True
        while first or self._peek() != "]":
            first = False
            low, is_set = self._member()
            if (
                self._peek() == "-"
                and self._text[self._at + 1 : self._at + 2] not in ("", "]")
                and not is_set
            ):
                self._at += 1
                high, is_set = self._member()
                if is_set or not 0 <= ord(min(high)) - ord(min(low)) < 0x100:
                    raise BadPattern("a range of characters cannot be read")
                chars.update(map(chr, range(ord(min(low)), min(ord(min(high)), _HIGHEST) + 1)))
            else:
                chars |= low
        self._at += 1
        return _One(frozenset(chars), negated=negated)

    def _member(self) -> tuple[frozenset[str], bool]:
        """Return the next characters of a class, and whether they are a set of their own."""
        char = self._next()
        if char == "[" and self._peek() == ":":
            raise BadPattern("`[:` is not understood")
        if char != "\\":
            return frozenset(char), False
        chars, negated = self._escape()
        if negated:
            raise BadPattern("a class without another one is not understood")
        return chars, len(chars) > 1


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4
