"""Deny patterns: their syntax, and what they match.

A pattern is an absolute path whose names may hold `*` and `?` (neither matches `/`), `[ab]`, `[a-c]` and
`[!ab]` (an unclosed `[` means itself), alternatives `{a,b}` that may be nested and hold `/`, and a backslash
before a character that means itself.  A name that is just `**` stands for any number of names: also for none,
except at the end.  `*` matches a leading dot.  Matching goes by characters; each byte that is no UTF-8 counts
as one.  A malformed pattern raises GlobError.

Standard library only, and without `re`: file workers match every path they are given.
"""

from __future__ import annotations

from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ALTERNATIVES_LIMIT = 256  # of one pattern
_SPECIAL = frozenset("*?[]{}\\,")

# Parts of a name; a string of one character stands for itself.
_ANY_ONE = 1
_ANY_MANY = 2


class GlobError(ValueError):
    """The pattern is malformed; the message says why."""


class _Class:
    """`[...]`: one character out of some, or (negated) none of them."""

    __slots__ = ("negated", "ranges")

    def __init__(self, negated: bool, ranges: list[tuple[str, str]]) -> None:
        self.negated = negated
        self.ranges = ranges

    def has(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges) != self.negated


class _Name:
    """One name of a pattern; `literal` is its text if nothing in it is special.

    `literal` and `suffix` (of `*.env`) are the common cases, compared without going through `parts`.
    """

    __slots__ = ("deep", "literal", "parts", "suffix")

    def __init__(self, parts: list[object]) -> None:
        self.parts = parts
        self.deep = parts == [_ANY_MANY, _ANY_MANY]
        self.literal = "".join(map(str, parts)) if all(isinstance(part, str) for part in parts) else None
        plain_end = bool(parts) and parts[0] is _ANY_MANY and all(isinstance(part, str) for part in parts[1:])
        self.suffix = "".join(map(str, parts[1:])) if plain_end else None

    def matches(self, name: str) -> bool:
        if self.literal is not None:
            return name == self.literal
        if self.suffix is not None:
            return name.endswith(self.suffix)
        return _match(self.parts, name)


class Glob:
    """One pattern without alternatives.

    Everything it matches is below the directory `prefix`; `text` is the pattern.  Walkers match name by name
    with a set of positions: `start` gives those for `prefix`, `step` advances them.
    """

    __slots__ = ("_names", "prefix", "text")

    def __init__(self, prefix: bytes, names: Sequence[_Name], text: bytes) -> None:
        self.prefix = prefix
        self._names = names
        self.text = text

    def start(self) -> frozenset[int]:
        """Return the positions at `prefix`."""
        return self._spread({0})

    def step(self, positions: frozenset[int], name: str) -> tuple[frozenset[int], bool]:
        """Return the positions after one more name, and whether the pattern matches there."""
        after: set[int] = set()
        for position in positions:
            part = self._names[position]
            if part.deep:
                after.add(position)
                if position + 1 == len(self._names):
                    return frozenset(after), True
            elif part.matches(name):
                after.add(position + 1)
        matched = len(self._names) in after
        after.discard(len(self._names))
        return self._spread(after), matched

    def moved(self, prefix: bytes) -> Glob:
        """Return the same pattern below another directory."""
        rest = self.text[len(escape(self.prefix)) :].lstrip(b"/")
        return Glob(prefix, self._names, join_pattern(prefix, rest))

    def _spread(self, positions: set[int]) -> frozenset[int]:
        """Add the positions reached without another name: past a `**`, which may stand for none."""
        todo = list(positions)
        while todo:
            position = todo.pop()
            follows = position + 1
            if self._names[position].deep and follows < len(self._names) and follows not in positions:
                positions.add(follows)
                todo.append(follows)
        return frozenset(positions)


class DenyPatterns:
    """Several patterns, to be asked about whole paths."""

    __slots__ = ("_globs",)

    def __init__(self, globs: Iterable[Glob]) -> None:
        self._globs = tuple(globs)

    def __bool__(self) -> bool:
        return bool(self._globs)

    def deepest(self, path: bytes) -> tuple[bytes, bytes] | None:
        """Return the deepest of a path and its parents that a pattern matches, and that pattern's text.

        A pattern that matches a directory denies everything in it.  None if nothing matches.
        """
        best: tuple[bytes, bytes] | None = None
        for glob in self._globs:
            found = _deepest(glob, path)
            if found is not None and (best is None or len(found) > len(best[0])):
                best = (found, glob.text)
        return best


def compile_patterns(patterns: Iterable[bytes]) -> DenyPatterns:
    """Compile absolute patterns.  Raises GlobError."""
    return DenyPatterns([glob for pattern in patterns for glob in compile_glob(pattern)])


def compile_glob(pattern: bytes) -> list[Glob]:
    """Compile an absolute pattern into one glob for each of its alternatives.  Raises GlobError."""
    text = pattern.decode("utf-8", "surrogateescape")
    if not text.startswith("/"):
        raise GlobError("not absolute")
    return [_compile(alternative) for alternative in _alternatives(text)]


def escape(path: bytes) -> bytes:
    """Return the pattern that matches exactly this path."""
    text = path.decode("utf-8", "surrogateescape")
    escaped = "".join(["\\" + character if character in _SPECIAL else character for character in text])
    return escaped.encode("utf-8", "surrogateescape")


def join_pattern(directory: bytes, pattern: bytes) -> bytes:
    """Make a relative pattern absolute, below a directory that is taken literally."""
    return (b"" if directory == b"/" else escape(directory)) + b"/" + pattern


def _deepest(glob: Glob, path: bytes) -> bytes | None:
    prefix = glob.prefix if glob.prefix != b"/" else b""
    if not path.startswith(prefix + b"/") or path == b"/":
        return None
    positions, best, end = glob.start(), None, len(prefix)
    # Name by name from the top, so the parents of the path are asked about on the way.
    for name in path[len(prefix) + 1 :].split(b"/"):
        if not positions:
            break
        end += 1 + len(name)
        positions, matched = glob.step(positions, name.decode("utf-8", "surrogateescape"))
        if matched:
            best = path[:end]
    return best


def _compile(text: str) -> Glob:
    """Return a pattern without alternatives as its literal directory and the names below it."""
    names: list[tuple[str, _Name]] = []
    for raw in _split_names(text):
        name = _Name(_parts(raw))
        # Dots are resolved by name: a pattern is matched against paths that have none.
        if name.literal == "..":
            del names[-1:]
        elif name.literal not in ("", "."):
            names.append((raw, name))
    if not names:
        raise GlobError("no name in it")
    # The last name never belongs to the prefix: a walk matches names in the prefix directory.
    count = 0
    while count < len(names) - 1 and names[count][1].literal is not None:
        count += 1
    prefix = "/" + "/".join([name.literal or "" for _, name in names[:count]])
    encoded = prefix.encode("utf-8", "surrogateescape")
    rest = "/".join([raw for raw, _ in names[count:]]).encode("utf-8", "surrogateescape")
    return Glob(encoded, [name for _, name in names[count:]], join_pattern(encoded, rest))


def _split_names(text: str) -> list[str]:
    """Split at the slashes that are not inside `[...]`."""
    names, begin, at = [], 0, 0
    while at < len(text):
        if text[at] == "/":
            names.append(text[begin:at])
            begin = at + 1
        elif text[at] == "\\":
            at += 1
        elif text[at] == "[":
            at = (_class_end(text, at) or at + 1) - 1
        at += 1
    return [*names, text[begin:]]


def _parts(name: str) -> list[object]:
    parts: list[object] = []
    at = 0
    while at < len(name):
        character = name[at]
        end = _class_end(name, at) if character == "[" else None
        if end is not None:
            parts.append(_class(name[at + 1 : end - 1]))
            at = end
            continue
        if character == "\\":
            at += 1
            if at == len(name):
                raise GlobError("it ends with a backslash")
            parts.append(name[at])
        elif character == "*":
            parts.append(_ANY_MANY)
        else:
            parts.append(_ANY_ONE if character == "?" else character)
        at += 1
    return parts


def _class_end(text: str, at: int) -> int | None:
    """Return where the class that opens at `at` ends, past its `]`; None if it is not closed."""
    begin = at + 2 if text[at + 1 : at + 2] in ("!", "^") else at + 1
    close = text.find("]", begin + 1)
    return None if close < 0 else close + 1


def _class(inside: str) -> _Class:
    negated = inside[:1] in ("!", "^")
    members = inside[1:] if negated else inside
    ranges, at = [], 0
    while at < len(members):
        low = high = members[at]
        if members[at + 1 : at + 2] == "-" and at + 2 < len(members):
            high = members[at + 2]
            at += 2
        if low > high:
            raise GlobError("a range is the wrong way round")
        ranges.append((low, high))
        at += 1
    return _Class(negated, ranges)


def _match(parts: list[object], name: str) -> bool:
    """Match one name; on a mismatch the last `*` takes one more character.

    It never goes back to an earlier `*`, so the time is bounded by the product of the lengths.
    """
    at = part = 0
    star = resume = -1
    while at < len(name):
        if part < len(parts) and parts[part] == _ANY_MANY:
            star, resume, part = part, at, part + 1
        elif part < len(parts) and _fits(parts[part], name[at]):
            at, part = at + 1, part + 1
        elif star >= 0:
            resume += 1
            at, part = resume, star + 1
        else:
            return False
    return all(left == _ANY_MANY for left in parts[part:])


def _fits(part: object, character: str) -> bool:
    if isinstance(part, _Class):
        return part.has(character)
    return part in (_ANY_ONE, character)


def _alternatives(text: str) -> list[str]:
    """Return the patterns that `{a,b}` in a pattern stands for.  Raises GlobError."""
    done: list[str] = []
    todo = [text]
    while todo:
        pattern = todo.pop()
        found = _first_braces(pattern)
        if found is None:
            done.append(pattern)
        else:
            begin, commas, end = found
            cuts = [begin, *commas, end]
            todo += [
                pattern[:begin] + pattern[left + 1 : right] + pattern[end + 1 :]
                for left, right in pairwise(cuts)
            ]
        if len(done) + len(todo) > ALTERNATIVES_LIMIT:
            raise GlobError("too many alternatives")
    return done


def _first_braces(text: str) -> tuple[int, list[int], int] | None:
    """Return where the first `{` is, its commas and its `}`; None without any."""
    begin, depth, at = -1, 0, 0
    commas: list[int] = []
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 1
        elif character == "[":
            at = (_class_end(text, at) or at + 1) - 1
        elif character == "{":
            begin = at if depth == 0 else begin
            depth += 1
        elif character == "}":
            if depth == 0:
                raise GlobError("a `}` closes nothing")
            depth -= 1
            if depth == 0:
                return begin, commas, at
        elif character == "," and depth == 1:
            commas.append(at)
        at += 1
    if depth:
        raise GlobError("a `{` is not closed")
    return None
