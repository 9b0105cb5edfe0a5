"""A tunnel through an upstream proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from execserver.egress.hosts import shown
from execserver.egress.http_heads import BadHead, head_length, parse_response, written
from execserver.services.egress.streams import Incoming

if TYPE_CHECKING:
    from execserver.egress.decisions import Question
    from execserver.http_client.proxy import Proxy

_HEAD_S = 15.0


def opened_tunnel(far: Incoming, proxy: Proxy, question: Question) -> bool:
    """Have an upstream proxy connect; return whether it did."""
    place = shown(question.host, question.port).encode()
    fields = [(b"Host", place)]
    if proxy.authorization is not None:
        fields.append((b"Proxy-Authorization", proxy.authorization))
    far.sock.sendall(written(b"CONNECT %b HTTP/1.1" % place, fields))
    try:
        head = far.take(head_length, _HEAD_S, _HEAD_S)
        return bool(head) and parse_response(head).status // 100 == 2
    except (BadHead, OSError):
        return False
