"""Peers that always have something to say: they keep the event loop from nobody else."""

from __future__ import annotations

from typing import cast

import gevent
import pytest

from execserver.egress.http_bodies import chunk
from execserver.egress.http_heads import Body
from execserver.eventloop.ends import End
from execserver.services.egress import http_exchange, streams
from tests.support.egress_scene import HELLO, get, rules, scene, upstream

LONG = 20_000  # reads without a pause


class Ready:
    """A socket that never makes anybody wait, until it was read very often."""

    def __init__(self, data: bytes) -> None:
        self.reads = 0
        self._data = data

    def recv(self, most: int) -> bytes:
        self.reads += 1
        return self._data if self.reads < LONG else b""


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        pytest.param(Body.CHUNKED, b"1\r\nx\r\n" * 300, id="many chunks"),
        pytest.param(Body.CHUNKED, chunk(bytes(1000)), id="chunks"),
        pytest.param(Body.LENGTH, bytes(1000), id="a length"),
        pytest.param(Body.UNTIL_CLOSE, bytes(1000), id="no length"),
    ],
)
def test_a_body_that_comes_without_a_pause_leaves_others_their_turn(kind: Body, data: bytes) -> None:
    source = Ready(data)
    incoming = streams.Incoming(cast(End, source))
    copying = gevent.Greenlet.spawn(http_exchange._copy_body, incoming, (kind, 1 << 40), len)
    gevent.sleep(0.002)
    assert 0 < source.reads < LONG
    copying.kill()


def test_the_chunks_of_one_read_are_passed_on_as_one() -> None:
    source = Ready(b"1\r\nx\r\n" * 3 + b"0\r\n\r\n")
    sent: list[bytes] = []
    incoming = streams.Incoming(cast(End, source))
    assert http_exchange._copy_body(incoming, (Body.CHUNKED, 0), sent.append)
    assert sent == [b"3\r\nxxx\r\n", b"0\r\n\r\n"]


@pytest.mark.parametrize(("interim", "status"), [(255, 200), (256, 502)])
def test_answers_before_the_real_one_are_counted(interim: int, status: int) -> None:
    answer = b"HTTP/1.1 102 Processing\r\n\r\n" * interim + HELLO
    with scene(rules("127.0.0.1")) as here, upstream(answer) as server:
        said = here.say(get(server.place).replace(b" HTTP/1.1", b" HTTP/1.0", 1))
        assert int(said.split(b" ")[1]) == status
