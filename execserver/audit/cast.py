"""A recording as asciicast v3, which terminal players read: a header, then `[interval, code, data]` lines."""

from __future__ import annotations

import codecs
import json
import shlex

from execserver.audit.recording import CUT, INPUT, OUTPUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MARK = "m"
_CUT_TEXT = "not recorded from here on: too much, or no room on the disk"


def cast(facts: dict[str, object], chunks: Iterable[tuple[int, bytes, bytes]]) -> Iterator[str]:
    """Yield the lines of the cast; bytes that are no UTF-8 become U+FFFD, also across two chunks."""
    argv, size = facts.get("argv"), facts.get("size")
    rows, cols = size if isinstance(size, list) and len(size) == 2 else (24, 80)
    header: dict[str, object] = {"version": 3, "term": {"cols": cols, "rows": rows}}
    if isinstance(at_ms := facts.get("at"), int):
        header["timestamp"] = at_ms // 1000
    if isinstance(argv, list):
        header["command"] = shlex.join(map(str, argv))
    yield json.dumps(header)
    decoders = {code: codecs.getincrementaldecoder("utf-8")("replace") for code in (OUTPUT, INPUT)}
    before = 0
    for moment, code, data in chunks:
        text = decoders[code].decode(data) if code in decoders else data.decode()
        if not text and code in decoders:
            continue  # the rest of a character comes with the next chunk
        interval = round(max(0, moment - before) / 1e6, 6)
        before = max(before, moment)
        event = (_MARK, _CUT_TEXT) if code == CUT else (code.decode(), text)
        yield json.dumps([interval, *event], ensure_ascii=False)
