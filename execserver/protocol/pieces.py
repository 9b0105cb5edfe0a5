"""Long listings as JSON text in pieces, so that none of them is held whole."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeVar

    E = TypeVar("E")

_BATCH = 512  # entries of one piece: about 50 KB, and below the clients' frame limit with the longest paths
_WALK_ENTRY = {True: '{"path":"%s","kind":"directory"}', False: '{"path":"%s","kind":"file"}'}
_WALK_ERROR = '{"path":"%s","message":"%s"}'


def batches(items: Sequence[E]) -> Iterator[Sequence[E]]:
    """Yield the entries of a listing, as many at once as go into one piece."""
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]


def comma_separated(texts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield texts with a comma before each but the first."""
    comma = b""
    for text in texts:
        yield comma + text
        comma = b","


def walk_text(
    entries: Sequence[tuple[str, bool]], errors: Sequence[tuple[str, str]], truncated: bool
) -> Iterator[bytes]:
    """Yield the JSON text of an FsWalkResponse, in pieces.  URIs and error texts need no escaping."""
    yield b'{"entries":['
    yield from comma_separated(
        ",".join([_WALK_ENTRY[is_directory] % uri for uri, is_directory in batch]).encode()
        for batch in batches(entries)
    )
    yield b'],"errors":['
    yield from comma_separated(
        ",".join([_WALK_ERROR % error for error in batch]).encode() for batch in batches(errors)
    )
    yield b'],"truncated":true}' if truncated else b'],"truncated":false}'
