"""Reading retained output: pages, limits, waits."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

import pytest

from tests.support.peer import Json, RemoteError
from tests.support.running import chunks_of, event, output_until, read, run, start, terminate, write
from tests.support.ws_peer import WsPeer

WAIT_MS = 30_000


@pytest.fixture
def three_chunks(peer: WsPeer) -> WsPeer:
    """A process `p` that has written 3 chunks of 10 bytes and waits."""
    start(peer, "p", ["cat"], pipeStdin=True)
    for number in range(3):
        write(peer, "p", b"%d" % number * 10, f"w{number}")
        output_until(peer, "p", b"%d" % number * 10)
    return peer


def seqs(result: Json) -> list[int]:
    return [chunk["seq"] for chunk in result["chunks"]]


def test_without_limits_everything_comes_at_once(three_chunks: WsPeer) -> None:
    result = read(three_chunks, "p")
    assert (seqs(result), result["nextSeq"]) == ([1, 2, 3], 4)
    assert chunks_of(result, "stdout") == b"0" * 10 + b"1" * 10 + b"2" * 10
    assert (result["exited"], result["exitCode"], result["closed"]) == (False, None, False)
    assert (result["failure"], result["sandboxDenied"]) == (None, False)


@pytest.mark.parametrize(
    ("after", "limit", "expected", "next_seq"),
    [
        (0, 0, [1], 2),
        (0, 1, [1], 2),
        (0, 10, [1], 2),
        (0, 19, [1], 2),
        (0, 20, [1, 2], 3),
        (0, 29, [1, 2], 3),
        (0, 30, [1, 2, 3], 4),
        (1, 10, [2], 3),
        (2, 100, [3], 4),
        (3, 100, [], 4),
        (99, 100, [], 4),
        (0, 2**63, [1, 2, 3], 4),
    ],
)
def test_a_page_holds_whole_chunks_within_its_limit(
    three_chunks: WsPeer, after: int, limit: int, expected: list[int], next_seq: int
) -> None:
    result = read(three_chunks, "p", after, maxBytes=limit)
    assert (seqs(result), result["nextSeq"]) == (expected, next_seq)


def test_pages_put_together_are_everything(peer: WsPeer) -> None:
    data = b"".join(b"%07d\n" % number for number in range(20_000))
    start(peer, "p", "i=0; while [ $i -lt 20000 ]; do printf '%07d\\n' $i; i=$((i+1)); done")
    while event(peer, "p")["method"] != "process/closed":
        pass
    found, after = b"", 0
    while (page := read(peer, "p", after, maxBytes=5_000))["chunks"]:
        found += chunks_of(page)
        assert page["nextSeq"] == page["chunks"][-1]["seq"] + 1
        after = page["chunks"][-1]["seq"]
    assert found == data


def test_a_read_waits_for_output(peer: WsPeer, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    start(peer, "p", ["cat", str(fifo)])
    peer.send({"id": 9, "method": "process/read", "params": {"processId": "p", "waitMs": WAIT_MS}})
    fifo.write_bytes(b"x")
    begun = time.monotonic()
    assert chunks_of(peer.take({"id": 9})["result"]) == b"x"
    assert time.monotonic() - begun < WAIT_MS / 1000 / 2


def test_a_read_that_waits_in_vain_comes_back_empty_in_time(peer: WsPeer) -> None:
    start(peer, "p", ["sleep", "100"])
    begun = time.monotonic()
    result = read(peer, "p", waitMs=200)
    assert 0.19 <= time.monotonic() - begun < 20
    assert (result["chunks"], result["nextSeq"], result["exited"]) == ([], 1, False)
    assert terminate(peer, "p")


def test_a_read_that_need_not_wait_does_not(three_chunks: WsPeer) -> None:
    begun = time.monotonic()
    read(three_chunks, "p", waitMs=WAIT_MS)
    run(three_chunks, "q", "exit 0")
    read(three_chunks, "q", 99, waitMs=WAIT_MS)
    assert time.monotonic() - begun < WAIT_MS / 1000 / 2


def test_an_exit_wakes_a_read_and_the_close_the_next(peer: WsPeer, tmp_path: Path) -> None:
    leader, holder = tmp_path / "leader", tmp_path / "holder"
    os.mkfifo(leader)
    os.mkfifo(holder)
    start(peer, "p", f"cat {shlex.quote(str(holder))} & read x < {shlex.quote(str(leader))}; exit 4")
    peer.send({"id": 9, "method": "process/read", "params": {"processId": "p", "waitMs": WAIT_MS}})
    leader.write_bytes(b"\n")
    exited = peer.take({"id": 9})["result"]
    assert (exited["exited"], exited["exitCode"], exited["closed"], exited["nextSeq"]) == (True, 4, False, 2)
    known = {"processId": "p", "afterSeq": 1, "waitMs": WAIT_MS}
    peer.send({"id": 10, "method": "process/read", "params": known})
    holder.write_bytes(b"")
    closed = peer.take({"id": 10})["result"]
    assert (closed["closed"], closed["nextSeq"]) == (True, 3)


def test_an_exit_that_was_not_seen_yet_is_reported_at_once(peer: WsPeer, tmp_path: Path) -> None:
    holder = tmp_path / "holder"
    os.mkfifo(holder)
    start(peer, "p", f"cat {shlex.quote(str(holder))} & exit 4")
    assert event(peer, "p")["method"] == "process/exited"
    begun = time.monotonic()
    assert read(peer, "p", 0, waitMs=WAIT_MS)["exitCode"] == 4
    assert time.monotonic() - begun < WAIT_MS / 1000 / 2
    holder.write_bytes(b"")


def test_terminate_wakes_a_waiting_read(peer: WsPeer) -> None:
    start(peer, "p", ["sleep", "100"])
    peer.send({"id": 9, "method": "process/read", "params": {"processId": "p", "waitMs": 2_000}})
    peer.send({"id": 10, "method": "process/terminate", "params": {"processId": "p"}})
    peer.take({"id": 9})
    assert peer.take({"id": 10})["result"] == {"running": True}


def test_only_the_newest_mebibyte_is_kept(peer: WsPeer) -> None:
    total = 3 * 1024 * 1024
    assert len(run(peer, "p", f"head -c {total} /dev/zero; printf end").stdout) == total + 3
    result = read(peer, "p")
    kept = chunks_of(result)
    assert 1024 * 1024 - 65_536 < len(kept) <= 1024 * 1024
    assert kept.endswith(b"\0end")
    assert seqs(result)[0] > 1


@pytest.mark.ours_only("an extension")
def test_what_was_dropped_is_told(peer: WsPeer) -> None:
    run(peer, "p", "head -c 100 /dev/zero")
    untouched = read(peer, "p")
    assert (untouched["oldestSeq"], untouched["lostBytes"]) == (1, 0)
    total = 2 * 1024 * 1024
    run(peer, "q", f"head -c {total} /dev/zero")
    result = read(peer, "q")
    assert result["oldestSeq"] == seqs(result)[0]
    assert result["lostBytes"] == total - len(chunks_of(result))


@pytest.mark.parametrize("process_id", ["", "nobody", "ü\n"])
def test_a_process_that_never_was_is_unknown(peer: WsPeer, process_id: str) -> None:
    with pytest.raises(RemoteError) as refusal:
        read(peer, process_id)
    assert (refusal.value.code, refusal.value.message) == (-32600, f"unknown process id {process_id}")
