"""What a kept command has printed so far, as far as its box retains it, and what it prints from now on."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from execserver.box.connecting import Box, reaching
from execserver.box.descriptors import Sink
from execserver.box.kept import find
from execserver.box.watching import lasting_client, leave
from execserver.client.event_log import Output
from execserver.leaving import write

if TYPE_CHECKING:
    from execserver.client.event_log import ReadState
    from execserver.client.process import RemoteProcess

_BY_SIGNAL: Final = 128
_BEYOND: Final = 2**62  # a seq that no process reaches
_PAGE_BYTES: Final = 1024 * 1024
_POLL_S: Final = 20.0
_MAX_TAIL_BYTES: Final = 64 * 1024 * 1024


def logs(box: Box, name: str, *, follow: bool, tail: int | None) -> int:
    """Print what a process has printed, and with `follow` what it will; return 0.  Raises Leave."""
    client = lasting_client(box)
    try:
        found = find(client, box, name)
        with reaching(box):
            process = client.watch_process(
                found.session_id, found.process_id, after_seq=0, collect_output=False
            )
            pages = Pages(process)
            earlier = pages.earlier()
            return _print(
                earlier if tail is None else last_lines(earlier, tail), pages.later() if follow else ()
            )
    finally:
        leave(client)


class Pages:
    """Reads retained output in pages, in order; `position` is the last seq that was read."""

    def __init__(self, process: RemoteProcess) -> None:
        self._process = process
        self.position = 0

    def earlier(self) -> Iterator[Output]:
        """Yield what is there now: a process that prints faster than we read is not followed for ever."""
        end = self._process.read(after_seq=_BEYOND).next_seq
        while self.position < end - 1:
            state = self._process.read(self.position, _PAGE_BYTES)
            self._tell_loss(state)
            if not state.chunks:
                return
            yield from state.chunks
            self.position = state.next_seq - 1

    def later(self) -> Iterator[Output]:
        """Yield what comes, until the process has closed its output."""
        while True:
            state = self._process.read(self.position, _PAGE_BYTES, _POLL_S)
            self._tell_loss(state)
            yield from state.chunks
            self.position = max(self.position, state.next_seq - 1)
            if state.closed and not state.chunks:
                return

    def _tell_loss(self, state: ReadState) -> None:
        if state.oldest_seq is not None and state.oldest_seq > self.position + 1 and state.lost_bytes:
            text = f"execserver: the box retains no more than this: {state.lost_bytes} bytes are gone\n"
            write(2, text)


def last_lines(outputs: Iterable[Output], count: int) -> list[Output]:
    """Return the end of the output that has so many lines; at most the last 64 MiB of it."""
    kept: deque[Output] = deque()
    lines = held = 0
    for output in outputs:
        kept.append(output)
        held += len(output.data)
        lines += output.data.count(b"\n")
        while kept and (lines - kept[0].data.count(b"\n") > count or held > _MAX_TAIL_BYTES):
            gone = kept.popleft()
            held -= len(gone.data)
            lines -= gone.data.count(b"\n")
    if not kept or count == 0:
        return []
    surplus = lines + (not kept[-1].data.endswith(b"\n")) - count
    first = kept[0]
    if surplus > 0:
        kept[0] = Output(first.seq, first.stream, first.data.split(b"\n", surplus)[-1])
    return list(kept)


def _print(earlier: Iterable[Output], later: Iterable[Output]) -> int:
    stdout, stderr = Sink(1), Sink(2)
    try:
        for outputs in (earlier, later):
            for output in outputs:
                (stderr if output.stream == "stderr" else stdout).write(output.data)
    except BrokenPipeError:
        return _BY_SIGNAL + signal.SIGPIPE
    finally:
        stdout.close()
        stderr.close()
    return 0
