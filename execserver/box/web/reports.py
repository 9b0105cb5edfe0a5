"""What a box says about its sandbox, and what its processes have printed."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

import msgspec

from execserver.box.web.failing import UNSUPPORTED, CallFailed
from execserver.box.web.processes import following

if TYPE_CHECKING:
    from execserver.box.web.link import Link
    from execserver.box.web.reading import Params

_PAGE_BYTES: Final = 256 * 1024
_ONE_PIECE: Final = 64 * 1024  # a page begins with a whole one, and would end before the end without room
_MOST_BYTES: Final = 2**40


def sandbox(link: Link, params: Params) -> object:
    """Return the sandbox report of a box."""
    with link.using() as client:
        if not client.extensions.environment_sandbox:
            raise CallFailed("this server says nothing about its sandbox", UNSUPPORTED)
        return msgspec.to_builtins(client.environment_sandbox())


def log(link: Link, params: Params) -> dict[str, object]:
    """Return a page of what a process has printed, the latest first."""
    before = params.maybe_number("before", 0, _MOST_BYTES) or 0
    with link.using() as client:
        if not client.extensions.process_log:
            raise CallFailed("this server keeps no log", UNSUPPORTED, "use a newer execserver")
        for process in following(link, client, params.text("process_id", 256)):
            page = process.log(max_bytes=_PAGE_BYTES + _ONE_PIECE, tail_bytes=before + _PAGE_BYTES)
            pieces = [
                {
                    "seq": each.seq,
                    "stream": each.stream.value,
                    "at_ms": each.at_ms,
                    "data": base64.b64encode(each.chunk).decode(),
                }
                for each in page.chunks
            ]
            is_first = not page.chunks or page.chunks[0].seq <= page.oldest_seq
            return {"pieces": pieces, "before": None if is_first else before + _PAGE_BYTES}
    raise AssertionError("a process is yielded, or an error raised")
