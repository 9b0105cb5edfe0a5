"""Waiting for the end of an input."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest
from gevent.event import Event

from execserver.eventloop.input_end import InputEnd

WAIT_S = 20.0


@pytest.fixture
def pipe() -> Iterator[list[int]]:
    ends = [*os.pipe2(os.O_CLOEXEC)]
    yield ends
    for descriptor in ends:
        os.close(descriptor)


def test_the_end_is_told_once_and_what_came_before_is_thrown_away(pipe: list[int]) -> None:
    ended = Event()
    calls = []

    def act() -> None:
        calls.append(1)
        ended.set()

    waiting = InputEnd(pipe[0], act)
    os.write(pipe[1], b"x" * 60_000)
    gevent.sleep(0)
    assert not ended.is_set()
    os.close(pipe.pop())
    assert ended.wait(WAIT_S)
    gevent.sleep(0)
    assert calls == [1]
    waiting.close()


@pytest.mark.parametrize("kind", ["file", "/dev/null"])
def test_what_is_no_pipe_is_at_its_end_soon(kind: str, tmp_path: Path) -> None:
    path = Path(kind) if kind.startswith("/") else tmp_path / kind
    if not path.exists():
        path.write_bytes(b"x" * 100_000)
    ended = Event()
    with path.open("rb") as file:
        waiting = InputEnd(file.fileno(), ended.set)
        assert ended.wait(WAIT_S)
        waiting.close()


def test_nothing_is_told_after_closing(pipe: list[int]) -> None:
    ended, other_ended = Event(), Event()
    waiting = InputEnd(pipe[0], ended.set)
    other = InputEnd(pipe[0], other_ended.set)  # knows when the loop has seen the end
    waiting.close()
    waiting.close()
    os.close(pipe.pop())
    assert other_ended.wait(WAIT_S)
    other.close()
    assert not ended.is_set()
