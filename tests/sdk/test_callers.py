"""Threads of a blocking client that read slowly while others wait."""

from __future__ import annotations

import threading

from execserver_client import ConnectOptions, Output
from execserver_client.sync import connect
from execserver_client.sync._callers import calling_thread

SMALL = ConnectOptions(max_unread_bytes=100_000, max_unread_bytes_while_waiting=300_000)
SIZE = 5_000_000


def test_a_thread_is_one_caller_until_it_ends() -> None:
    others = []
    thread = threading.Thread(target=lambda: others.append(calling_thread()))
    thread.start()
    thread.join()
    assert calling_thread() is calling_thread()
    assert calling_thread() is not others[0]
    assert not calling_thread().done()
    assert others[0].done()


def test_a_thread_that_reads_slowly_loses_nothing_while_another_waits(url: str) -> None:
    with connect(url, options=SMALL) as box:
        quiet = box.start(["sleep", "600"])
        loud = box.start(["head", "-c", str(SIZE), "/dev/zero"])
        events = iter(loud)
        first = next(events)
        assert isinstance(first, Output)
        waiting = {"processId": quiet.process_id, "waitMs": 500}
        other = threading.Thread(target=box.call, args=("process/read", waiting))
        other.start()
        other.join(0.4)  # the reader reads nothing meanwhile
        rest = [event.data for event in events if isinstance(event, Output)]
        assert len(first.data) + sum(map(len, rest)) == SIZE
        other.join()
