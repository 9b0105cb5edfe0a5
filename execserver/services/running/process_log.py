"""A page of all output of a process that is kept: first what is spooled, then what is in memory."""

from __future__ import annotations

from typing import Final, NamedTuple

from execserver.core.output_log import OutputLog, TimedChunk
from execserver.services.running.process import Process
from execserver.services.running.spool import Spool

DEFAULT_PAGE: Final = 1024 * 1024
LARGEST_PAGE: Final = 4 * 1024 * 1024
_CHUNK_COST = 100  # what a chunk takes on the wire besides its bytes, so that tiny ones count, too


class LogPage(NamedTuple):
    """Some chunks in order, the number at which the next page begins, and what is kept nowhere."""

    chunks: list[TimedChunk]
    next_seq: int
    oldest_seq: int
    lost_bytes: int


def first_seq(process: Process, after_seq: int, tail_bytes: int | None, since_ms: int | None) -> int:
    """Return the number behind which a reader begins who wants the last bytes, or what came since a time."""
    log, spool = process.state.log, process.spool
    if tail_bytes is not None:
        after_seq = max(after_seq, _beginning(log, spool, tail_bytes, None))
    if since_ms is not None:
        after_seq = max(after_seq, _beginning(log, spool, None, since_ms))
    return after_seq


def _beginning(log: OutputLog, spool: Spool | None, tail_bytes: int | None, since_ms: int | None) -> int:
    retained = log.timed_after(0)
    if tail_bytes is not None and tail_bytes <= log.size:
        left = tail_bytes
        for each in reversed(retained):
            if left <= 0:
                return each.chunk.seq
            left -= len(each.chunk.data)
        return log.oldest_seq - 1
    if since_ms is not None and retained and retained[0].at_ms < since_ms:
        return next((each.chunk.seq - 1 for each in retained if each.at_ms >= since_ms), log.next_seq - 1)
    if spool is None:
        return 0
    return spool.seq_before(None if tail_bytes is None else tail_bytes - log.size, since_ms)


def page(process: Process, after_seq: int, max_bytes: int) -> LogPage:
    """Return the next chunks behind a number, the first whatever its size.  May wait for a disk."""
    log, spool = process.state.log, process.spool
    taken: list[TimedChunk] = []
    room = max_bytes
    while room > 0:
        # Asked anew each time: while the disk was read, more may have left the memory.
        found = spool.next_chunks(after_seq) if spool is not None and after_seq + 1 < log.oldest_seq else []
        last = not found
        for each in found or log.timed_after(after_seq):
            room -= len(each.chunk.data) + _CHUNK_COST
            if taken and room < 0:
                break
            taken.append(each)
            after_seq = each.chunk.seq
        if last:
            break
    held = 0 if spool is None else spool.held_bytes
    oldest = log.oldest_seq if spool is None else spool.oldest_seq or log.oldest_seq
    next_seq = taken[-1].chunk.seq + 1 if taken else log.next_seq
    return LogPage(taken, next_seq, oldest, log.lost_bytes - held)
