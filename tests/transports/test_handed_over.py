"""What a connection hands over: what it has in hand is finished, what waits is asked for again."""

from __future__ import annotations

import os

import pytest

from execserver.protocol.envelope import Request, encode_again, parse_message
from execserver.transports.inbox import Inbox
from execserver.transports.outbox import Outbox
from execserver.transports.ws_server import WebSocketFraming
from tests.support.greenlets import turns

pytestmark = pytest.mark.usefixtures("loop_failures")


class Transport:
    """Nothing but an outbox."""

    malformed_prefix = ""

    def __init__(self) -> None:
        self.outbox = self

    queued = 0

    def pause(self) -> None:
        """Nothing is read."""

    def resume(self) -> None:
        """Nothing is read."""

    def hold(self) -> None:
        """Nothing is written."""

    def release(self) -> None:
        """Nothing is written."""


def test_a_held_inbox_keeps_what_arrives_and_goes_on_where_it_was() -> None:
    handled: list[bytes] = []

    def at_once(message: bytes) -> bool:
        handled.append(message)
        return True

    inbox = Inbox(Transport(), at_once)  # type: ignore[arg-type]
    inbox.receive([b"a"])
    inbox.hold()
    inbox.receive([b"b", b"c"])
    assert (handled, list(inbox.waiting)) == ([b"a"], [b"b", b"c"])
    inbox.release()
    inbox.handle_all(handled.append)
    assert (handled, list(inbox.waiting)) == ([b"a", b"b", b"c"], [])


def test_what_an_outbox_has_not_sent_another_one_sends_first() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    old = Outbox(writer, WebSocketFraming(), lambda: None)
    old.send_control(b"x" * 65_536)
    old.flush()
    for text in (b"one", b"two"):
        old.send(text)
    old.flush()
    unsent = old.pack()
    old.close()
    assert b"".join(unsent).endswith(b"\x81\x03one\x81\x03two")
    new = Outbox(writer, WebSocketFraming(), lambda: None)
    new.restore(unsent)
    new.send(b"three")
    data = b""
    while not data.endswith(b"\x81\x05three"):
        data += os.read(reader, 1 << 20)
        turns()
    assert data == b"x" * 65_536 + b"\x81\x03one\x81\x03two\x81\x05three"
    new.close()
    os.close(reader)
    os.close(writer)


def test_a_request_is_asked_again_with_its_id_and_its_trace() -> None:
    text = b'{"id":"a","method":"m","params":{"x":1},"trace":{"traceparent":"00-1","tracestate":null}}'
    request = parse_message(text)
    assert isinstance(request, Request)
    again = parse_message(encode_again(request, b'{"x":2}'))
    assert isinstance(again, Request)
    assert (again.id, again.method, bytes(again.params), again.trace) == ("a", "m", b'{"x":2}', request.trace)
