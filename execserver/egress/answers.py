"""What a process reads that is refused: the wire contract's answers, byte for byte (section 8.9).

Where the machine's own rules refuse a tunnel, the note about it is in the status line, too: most programs
show nothing else of such an answer.
"""

from __future__ import annotations

import json
from functools import lru_cache

from execserver.egress.http_heads import written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.egress.decisions import Question, Verdict

_REASONS = {
    400: b"Bad Request",
    403: b"Forbidden",
    501: b"Not Implemented",
    502: b"Bad Gateway",
}
_TEXT, _JSON = b"text/plain", b"application/json"


def blocked(verdict: Verdict, question: Question, date: bytes, *, closes: bool) -> bytes:
    """Return the answer to a plain request; `closes` if the connection ends behind it."""
    body = {
        "status": "blocked",
        "host": question.host,
        "reason": verdict.reason,
        "decision": verdict.action.value,
        "source": verdict.source.value,
        "protocol": question.protocol.value,
        "port": question.port,
        "message": verdict.message,
    }
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    label = verdict.error_label.encode()
    return _answer(403, date, _JSON, text, closes=closes, label=label)


def tunnel_blocked(verdict: Verdict, date: bytes, *, closes: bool) -> bytes:
    """Return the answer to CONNECT."""
    label, text = verdict.error_label.encode(), verdict.message.encode()
    return _answer(403, date, _TEXT, text, closes=closes, label=label, note=verdict.note.encode("ascii"))


def plain(status: int, text: str, date: bytes, *, closes: bool) -> bytes:
    """Return an answer with a text."""
    return _answer(status, date, _TEXT, text.encode(), closes=closes)


def junk(date: bytes) -> bytes:
    """Return the answer to what is no request; the connection ends behind it."""
    fields = [(b"connection", b"close"), (b"content-length", b"0"), (b"date", date)]
    return written(b"HTTP/1.1 400 Bad Request", fields)


@lru_cache(maxsize=1)  # of the second that it is
def connected(date: bytes) -> bytes:
    """Return the answer to a CONNECT that is allowed."""
    return written(b"HTTP/1.1 200 OK", [(b"date", date)])


def _answer(
    status: int,
    date: bytes,
    kind: bytes,
    body: bytes,
    *,
    closes: bool,
    label: bytes = b"",
    note: bytes = b"",
) -> bytes:
    fields = [(b"content-type", kind)]
    if label:
        fields.append((b"x-proxy-error", label))
    if closes:
        fields.append((b"connection", b"close"))
    fields += [(b"content-length", b"%d" % len(body)), (b"date", date)]
    reason = _REASONS[status] + (b": " + note if note else b"")
    return written(b"HTTP/1.1 %d %b" % (status, reason), fields) + body
