"""What a peer may not do before it has upgraded its connection: be silent, be slow, be long-winded."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.proc import descriptor_count
from tests.support.raw_http import RawHttp
from tests.support.server_process import Flavour, ServerProcess
from tests.support.waiting import wait_until

UPGRADE_TIMEOUT = 1.0
SETTINGS = {"upgrade_timeout_s": UPGRADE_TIMEOUT}
pytestmark = pytest.mark.ours_only("the reference waits for ever, and takes longer heads")


@pytest.fixture
def http(server: ServerProcess) -> Iterator[RawHttp]:
    """A fresh TCP connection to the port, which is soon dropped."""
    with RawHttp(server.url) as connection:
        yield connection


@pytest.fixture(scope="module")
def patient(flavour: Flavour) -> Iterator[ServerProcess]:
    """A server that waits for a head as long as a busy machine may need to send it."""
    with ServerProcess(flavour) as running:
        yield running


@pytest.fixture
def unhurried(patient: ServerProcess) -> Iterator[RawHttp]:
    """A fresh TCP connection to that server."""
    with RawHttp(patient.url) as connection:
        yield connection


def test_a_head_that_is_too_large_is_refused_and_closed(unhurried: RawHttp) -> None:
    unhurried.send(b"GET / HTTP/1.1\r\nx: " + b"y" * 16_384 + b"\r\n\r\n")
    assert unhurried.response().status == 431
    assert unhurried.wait_for_end() == b""


def test_a_head_without_end_is_refused_at_the_limit(unhurried: RawHttp) -> None:
    unhurried.send(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 3_000)
    assert unhurried.response().status == 431


def test_a_head_just_below_the_limit_is_answered(unhurried: RawHttp) -> None:
    head = b"GET /readyz HTTP/1.1\r\nx: "
    unhurried.send(head + b"y" * (16_384 - len(head)) + b"\r\n\r\n")
    assert unhurried.response().status == 200


@pytest.mark.parametrize(
    "begun", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"], ids=["nothing", "line", "head"]
)
def test_a_peer_that_is_silent_during_the_upgrade_is_dropped(server: ServerProcess, begun: bytes) -> None:
    before = time.monotonic()
    with RawHttp(server.url) as http:
        http.send(begun)
        assert http.wait_for_end() == b""
    assert time.monotonic() - before >= UPGRADE_TIMEOUT * 0.9


def test_a_peer_that_is_silent_after_an_answer_is_dropped(http: RawHttp) -> None:
    assert http.ask("GET /readyz HTTP/1.1").status == 200
    assert http.wait_for_end() == b""


def test_a_peer_that_drips_its_head_is_dropped_all_the_same(http: RawHttp) -> None:
    before = time.monotonic()
    http.send(b"GET /")
    while not select.select([http.socket], [], [], UPGRADE_TIMEOUT / 10)[0]:
        http.send(b"x")
    assert http.wait_for_end() == b""
    assert time.monotonic() - before < 20


def test_dropped_peers_leave_no_descriptor_behind(server: ServerProcess) -> None:
    before = descriptor_count(server.pid)
    with ExitStack() as stack:
        silent = [stack.enter_context(RawHttp(server.url)) for _ in range(20)]
        for connection in silent:
            connection.wait_for_end()
    wait_until(lambda: descriptor_count(server.pid) <= before)
