"""The rules of `.gitignore` files: how their lines are read, and which paths they match.

As git has it (gitignore(5), and for what that leaves open its behaviour): a later rule counts more than an
earlier one, `!` takes a path back, a slash before the end ties a rule to the folder of its file, one at the
end lets it match directories only.  Matching goes by bytes.  Each pattern becomes a regular expression that
never goes back behind a part that has matched, so its time is bounded by the product of the lengths.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

MAX_LINE = 4096  # bytes
MAX_PATTERN = 256  # bytes of one with wildcards: the worst takes 50 ms to compile, and as long for a path
_REMEMBERED = 1024  # lines whose rule is remembered: a page of a walk reads the files above it again
_BOM = b"\xef\xbb\xbf"
_WILD = re.compile(rb"[*?\[\\]")
_NEVER = b"(?!)"
_SLASH, _BACKSLASH, _DASH, _OPEN, _STAR, _QUESTION, _COLON = b"/\\-[*?:"
_ASCII = {
    b"alnum": rb"[0-9A-Za-z]",
    b"alpha": rb"[A-Za-z]",
    b"blank": rb"[ \t]",
    b"cntrl": rb"[\x00-\x1f\x7f]",
    b"digit": rb"[0-9]",
    b"graph": rb"[\x21-\x7e]",
    b"lower": rb"[a-z]",
    b"print": rb"[\x20-\x7e]",
    b"punct": rb"[!-/:-@\[-`{-~]",
    b"space": rb"[ \t-\r]",
    b"upper": rb"[A-Z]",
    b"xdigit": rb"[0-9A-Fa-f]",
}


class TooMuch(Exception):
    """A file of rules is beyond a limit; the text says which."""


class Rule(NamedTuple):
    """One line: what it matches, and what it says about that.

    `expression` None: the text itself must be matched, `is_suffix` its end only.
    """

    excludes: bool
    directories_only: bool
    by_name: bool
    text: bytes
    is_suffix: bool
    expression: re.Pattern[bytes] | None

    def matches(self, path: bytes, name: bytes, is_directory: bool) -> bool:
        """Tell about a path below the folder of the file, and its last name."""
        if self.directories_only and not is_directory:
            return False
        found = name if self.by_name else path
        if self.expression is not None:
            return self.expression.fullmatch(found) is not None
        return found.endswith(self.text) if self.is_suffix else found == self.text


def rules_in(content: bytes) -> Iterator[Rule]:
    """Yield the rules of a file, the last one, which counts most, first.  Raises TooMuch."""
    for line in reversed(content.removeprefix(_BOM).split(b"\n")):
        if len(line) > MAX_LINE:
            raise TooMuch(f"a line has more than {MAX_LINE} bytes")
        rule = _rule(line)
        if rule is not None:
            yield rule


@lru_cache(_REMEMBERED)
def _rule(line: bytes) -> Rule | None:
    text = line.removesuffix(b"\r").partition(b"\0")[0]
    if text.startswith(b"#"):
        return None
    text = _without_trailing_spaces(text)
    excludes = not text.startswith(b"!")
    text = text if excludes else text[1:]
    directories_only = text.endswith(b"/")
    text = text[:-1] if directories_only else text
    by_name = b"/" not in text
    text = text.removeprefix(b"/")
    if not text:
        return None
    is_suffix = by_name and text.startswith(b"*") and not _WILD.search(text, 1)
    expression = None
    if is_suffix:
        text = text[1:]
    elif _WILD.search(text):
        if len(text) > MAX_PATTERN:
            raise TooMuch(f"a pattern with wildcards has more than {MAX_PATTERN} bytes")
        expression = re.compile(_translated(text), re.DOTALL)
    return Rule(excludes, directories_only, by_name, text, is_suffix, expression)


def _without_trailing_spaces(text: bytes) -> bytes:
    kept = text.rstrip(b" ")
    backslashes = len(kept) - len(kept.rstrip(b"\\"))
    return text[: len(kept) + 1] if backslashes % 2 and len(kept) < len(text) else kept


def _translated(text: bytes) -> bytes:
    """Return a pattern as a regular expression for a whole name or path.

    It is cut at each name `**`: what stands between two of them begins and ends with names, so its earliest
    place in a path leaves most for the rest.
    """
    begin = _WILD.search(text)
    cuts = _cuts(text, 0 if begin is None else begin.start())
    parts = [_part(text[begin:end], end == len(text)) for begin, end in cuts]
    if any(part is None for part in parts):
        return _NEVER
    first, *rest = [part or b"" for part in parts]
    between = b"".join(b"(?>(?:[^/]*/)*?" + part + b")" for part in rest[:-1])
    if not rest:
        return first
    if text.endswith(b"**") and cuts[-1][0] == cuts[-1][1]:
        return first + between + b".*"
    return first + between + b"(?:[^/]*/)*?" + rest[-1]


def _cuts(text: bytes, literal: int) -> list[tuple[int, int]]:
    """Return where the parts between the names `**` are; each ends with its slash but for the last one."""
    cuts, begin, at = [], 0, literal  # git compares the literal beginning first, and matches only the rest
    while at < len(text):
        if text[at] == _BACKSLASH:
            at += 2
        elif text[at] == _OPEN:
            found = _class(text, at + 1)
            at = len(text) if found is None else found[1]
        elif text[at : at + 2] == b"**":
            end = at + len(text[at:]) - len(text[at:].lstrip(b"*"))
            is_name = (at == literal or text[at - 1] == _SLASH) and text[end : end + 1] in (b"", b"/")
            if is_name:
                cuts.append((begin, at))
                begin = end + 1 if end < len(text) else end
            at = end + is_name
        else:
            at += 1
    return [*cuts, (begin, len(text))]


def _part(text: bytes, is_last: bool) -> bytes | None:
    """Return what matches a part without a name `**`; None if nothing does."""
    made, run, after_star, at = b"", b"", False, 0
    while at < len(text):
        if text[at] == _STAR:
            made, run = made + _run(run, after_star, is_last=False), b""
            after_star = True
            at += len(text[at:]) - len(text[at:].lstrip(b"*"))
            continue
        if text[at] == _OPEN:
            found = _class(text, at + 1)
            if found is None:
                return None
            members, at = found
            run += members
            continue
        escaped = text[at] == _BACKSLASH
        at += escaped
        if at == len(text):
            return None  # a backslash at the end
        is_any = text[at] == _QUESTION and not escaped
        run += b"[^/]" if is_any else re.escape(text[at : at + 1])
        at += 1
    return made + _run(run, after_star, is_last=is_last)


def _run(run: bytes, after_star: bool, *, is_last: bool) -> bytes:
    """Return what matches text, `after_star` anywhere in a name; only the last is tried at each place."""
    if not after_star:
        return run
    return b"[^/]*" + run if is_last else b"(?>[^/]*?" + run + b")"


def _class(text: bytes, at: int) -> tuple[bytes, int] | None:
    """Return what matches `[...]`, whose inside begins at `at`, and its end; None if it is malformed."""
    negated = text[at : at + 1] in (b"!", b"^")
    at += negated
    members: set[int] = set()
    first, before = True, -1
    while first or text[at : at + 1] != b"]":
        first = False
        if at >= len(text):
            return None
        if text[at : at + 2] == b"[:":
            end = text.find(b"]", at + 2)
            if end < 0:
                return None
            if end > at + 2 and text[end - 1] == _COLON:
                named = _ASCII.get(text[at + 2 : end - 1])
                if named is None:
                    return None
                members |= {code for code in range(256) if re.fullmatch(named, bytes([code]))}
                at, before = end + 1, -1
                continue
        is_range = text[at] == _DASH and before >= 0 and text[at + 1 : at + 2] not in (b"", b"]")
        at += is_range
        at += text[at] == _BACKSLASH
        if at >= len(text):
            return None
        members |= set(range(before, text[at] + 1)) if is_range else {text[at]}
        before = -1 if is_range else text[at]
        at += 1
    members = (set(range(256)) - members if negated else members) - {_SLASH}
    if not members:
        return _NEVER, at + 1
    return b"[" + b"".join(b"\\x%02x" % code for code in sorted(members)) + b"]", at + 1
