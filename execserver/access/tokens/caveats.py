"""What a token allows: its caveats, each of which only takes something away.

A caveat is a short text of URL-safe characters.  Laid upon each other they give `Restrictions`; a further
one gives the same or less, in whatever order they come.  A caveat that is not understood allows nothing: the
whole token is refused.  No I/O, no clock.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from execserver.access.identity import Grant

MAX_ROOTS = 16  # of one caveat, and of all caveats of a token together
MAX_ROOT_BYTES = 4096  # as in the kernel
LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")

_READ_ONLY, _NO_NETWORK = "r", "n"
_UNTIL = re.compile(r"u-(0|[1-9][0-9]{0,11})")
_LABELLED = re.compile(rf"l-({LABEL.pattern})")
_ROOTS = re.compile(r"d-([A-Za-z0-9_-]+)")


class BadCaveat(ValueError):
    """The text is no caveat, or what it is to say cannot be a caveat."""


class Restrictions(NamedTuple):
    """Everything that the caveats of one token take away.

    `until` is the first second, Unix time, in which it counts no more.  Nothing is writable outside of
    `roots`, absolute paths of which none is below another; None: no caveat names any.  `labels` are only for
    people.
    """

    until: int | None = None
    roots: tuple[bytes, ...] | None = None
    read_only: bool = False
    network: bool = True
    labels: tuple[str, ...] = ()

    def grant(self) -> Grant:
        """Return what remains, as it is laid over requests."""
        roots = None if self.roots is None else tuple([_text(root) for root in self.roots])
        return Grant(roots, self.read_only, self.network)

    def expired(self, now: float) -> bool:
        """Tell whether the time is over; it is from the very second that `until` names."""
        return self.until is not None and now >= self.until


NOTHING_TAKEN = Restrictions()


def caveats(
    until: int | None = None,
    roots: Sequence[bytes] | None = None,
    read_only: bool = False,
    network: bool = True,
    label: str | None = None,
) -> tuple[str, ...]:
    """Return the caveats that say this.  Raises BadCaveat for what none can say."""
    said = []
    if label is not None:
        said.append(f"l-{label}")
    if until is not None:
        said.append(f"u-{until}")
    if roots is not None:
        said.append(f"d-{_encoded(roots)}")
    if read_only:
        said.append(_READ_ONLY)
    if not network:
        said.append(_NO_NETWORK)
    restricted(said)  # what is written can be read
    return tuple(said)


def restricted(given: Iterable[str], start: Restrictions = NOTHING_TAKEN) -> Restrictions:
    """Return what is left after further caveats.  Raises BadCaveat for one that is not understood."""
    left = start
    for caveat in given:
        left = _with(left, caveat)
    return left


def intersection(one: Iterable[bytes], other: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the folders that lie in both lists of folders, by name, none of them below another."""
    other = list(other)
    both = {deeper for a in one for b in other if (deeper := _deeper(a, b)) is not None}
    return tuple(sorted(root for root in both if not any(_is_below(root, top) for top in both)))


def _with(left: Restrictions, caveat: str) -> Restrictions:
    if caveat == _READ_ONLY:
        return left._replace(read_only=True)
    if caveat == _NO_NETWORK:
        return left._replace(network=False)
    if found := _UNTIL.fullmatch(caveat):
        until = int(found[1])
        return left._replace(until=until if left.until is None else min(until, left.until))
    if found := _LABELLED.fullmatch(caveat):
        return left._replace(labels=(*left.labels, found[1]))
    if found := _ROOTS.fullmatch(caveat):
        roots = _decoded(found[1])
        both = intersection(roots, roots if left.roots is None else left.roots)
        if len(both) > MAX_ROOTS:  # else their number, and the work for each caveat, could grow with each
            raise BadCaveat(f"there can be at most {MAX_ROOTS} roots")
        return left._replace(roots=both)
    raise BadCaveat("a caveat is not understood")


def _encoded(roots: Sequence[bytes]) -> str:
    _check(roots)
    return base64.urlsafe_b64encode(b"\0".join(roots)).decode().rstrip("=")


def _decoded(text: str) -> list[bytes]:
    try:
        joined = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise BadCaveat("roots are not base64url") from None
    roots = joined.split(b"\0")
    _check(roots)
    return roots


def _check(roots: Sequence[bytes]) -> None:
    if not 0 < len(roots) <= MAX_ROOTS:
        raise BadCaveat(f"there can be 1 to {MAX_ROOTS} roots")
    for root in roots:
        if len(root) >= MAX_ROOT_BYTES or b"\0" in root or not _is_plain(root):
            raise BadCaveat(f"a root is an absolute path without `.`, `..` and `//`: {_text(root)!r}")


def _is_plain(path: bytes) -> bool:
    """Tell whether a path is absolute and its own normalised form: by name, one path is one folder."""
    if path == b"/":
        return True
    first, *names = path.split(b"/")
    return first == b"" and bool(names) and not any(name in (b"", b".", b"..") for name in names)


def _deeper(one: bytes, other: bytes) -> bytes | None:
    """Return the deeper of two folders, None if neither holds the other."""
    if one == other or _is_below(one, other):
        return one
    return other if _is_below(other, one) else None


def _is_below(path: bytes, folder: bytes) -> bool:
    return path != folder and path.startswith(folder if folder == b"/" else folder + b"/")


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
