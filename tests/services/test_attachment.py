from __future__ import annotations

import gevent
import pytest

from execserver.services.clients.attachment import Attachment
from tests.services.fakes import FakeSink
from tests.support.greenlets import turns

pytestmark = pytest.mark.usefixtures("loop_failures")


def attached() -> tuple[Attachment, FakeSink]:
    attachment, sink = Attachment(), FakeSink()
    attachment.sink = sink
    return attachment, sink


def test_messages_go_to_the_attached_client() -> None:
    attachment, sink = attached()
    attachment.send(b"whole")
    attachment.send(b"in ", b"parts")
    assert sink.messages == [b"whole", b"in parts"]


def test_an_empty_message_is_none() -> None:
    attachment, sink = attached()
    attachment.send(b"")
    attachment.send()
    attachment.send(b"", b"")
    assert sink.messages == []


def test_while_detached_messages_are_dropped_and_nobody_waits() -> None:
    attachment = Attachment()
    attachment.send(b"dropped")
    assert attachment.has_room
    attachment.wait_for_room()
    sink = FakeSink()
    attachment.sink = sink
    assert sink.messages == []


def test_room_is_the_clients() -> None:
    attachment, sink = attached()
    assert attachment.has_room
    sink.fill()
    assert not attachment.has_room


def test_producers_wait_while_the_client_does_not_read() -> None:
    attachment, sink = attached()
    sink.fill()
    producer = gevent.spawn(attachment.wait_for_room)
    turns()
    assert not producer.ready()
    sink.read()
    assert producer.ready()
    assert attachment.sink is sink


def test_a_client_that_is_gone_holds_up_nobody() -> None:
    attachment, sink = attached()
    sink.fill()
    producers = [gevent.spawn(attachment.wait_for_room) for _ in range(2)]
    turns()
    sink.close()
    turns()
    assert all(producer.ready() for producer in producers)
    assert attachment.sink is None
    waits = sink.waits
    attachment.wait_for_room()
    assert sink.waits == waits


def test_who_waited_for_one_client_waits_for_the_next() -> None:
    attachment, sink = attached()
    sink.fill()
    producer = gevent.spawn(attachment.wait_for_room)
    turns()
    other = FakeSink()
    other.fill()
    attachment.sink = other
    sink.close()
    turns()
    assert not producer.ready()
    assert attachment.sink is other
    other.read()
    assert producer.ready()
