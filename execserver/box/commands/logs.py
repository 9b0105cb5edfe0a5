"""What a kept command has printed so far, as far as its box retains it, and what it prints from now on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from execserver.box.commands.kept import find
from execserver.box.commands.notices import telling
from execserver.box.commands.watching import lasting_client, leave
from execserver.box.connecting import Box, asking, patience, reaching, unreachable
from execserver.box.descriptors import Sink
from execserver.box.shown import shown
from execserver.client.errors import WaitTimeout
from execserver.client.rules.event_log import Output, ReadState
from execserver.client.rules.recovery import SessionState
from execserver.leaving import unwritable, write

if TYPE_CHECKING:
    from execserver.client.client import ExecServerClient
    from execserver.client.process import RemoteProcess

T = TypeVar("T")

_BEYOND: Final = 2**62  # a seq that no process reaches
_PAGE_BYTES: Final = 1024 * 1024
_POLL_S: Final = 20.0
_MAX_TAIL_BYTES: Final = 64 * 1024 * 1024
_OVERHEAD: Final = 256  # bytes that a piece costs besides its content


def logs(box: Box, name: str, *, follow: bool, tail: int | None, since_ms: int | None) -> int:
    """Print what a process has printed (`since_ms`: from so many Unix milliseconds on), with `follow` also
    what it will; return 0.  Raises Leave.
    """
    client = lasting_client(box)
    try:
        found = find(client, box, name)
        if since_ms is not None and not client.extensions.process_log:
            raise unreachable(f"{shown(box.name, 200)}: this server notes no times", "use a newer one there")
        with asking(box):
            process = client.watch_process(
                found.session_id, found.process_id, after_seq=0, collect_output=False
            )
        with reaching(box), telling(client, box.name):
            pages = Pages(client, process, since_ms)
            earlier = pages.earlier()
            return _print(
                earlier if tail is None else last_lines(earlier, tail), pages.later() if follow else ()
            )
    finally:
        leave(client)


class Pages:
    """Reads retained output in pages, in order; `position` is the last seq that was read."""

    def __init__(self, client: ExecServerClient, process: RemoteProcess, since_ms: int | None) -> None:
        self._client = client
        self._process = process
        self._since_ms = since_ms
        self._from_disk = client.extensions.process_log
        self.position = 0

    def earlier(self) -> Iterator[Output]:
        """Yield what is there now: a process that prints faster than we read is not followed for ever."""
        end = self._asked(lambda: self._process.read(after_seq=_BEYOND)).next_seq
        while self.position < end - 1:
            outputs = self._page()
            yield from outputs
            if not outputs:
                return  # also where a box says that there is more: an empty page is the end for now

    def later(self) -> Iterator[Output]:
        """Yield what comes, until the process has closed its output."""
        while True:
            before = self.position
            state = self._asked(self._news)
            yield from self._page()
            if state.closed and self.position == before:
                return

    def _news(self) -> ReadState:
        """Wait for news, wherever they are kept."""
        return self._process.read(self.position, 1, _POLL_S)

    def _page(self) -> list[Output]:
        return self._asked(self._logged if self._from_disk else self._retained)

    def _asked(self, request: Callable[[], T]) -> T:
        """Return an answer; the time of a lost connection does not count.  Raises as the requests do."""
        while True:
            resumptions = self._client.resumptions
            try:
                with patience():
                    return request()
            except WaitTimeout:
                if self._client.state is SessionState.OPEN and self._client.resumptions == resumptions:
                    raise

    def _logged(self) -> list[Output]:
        page = self._process.log(self.position, _PAGE_BYTES, since_ms=self._since_ms)
        if page.chunks and self._since_ms is None:
            self._tell_loss(page.oldest_seq, page.lost_bytes, page.spool_error)
        self.position = max(self.position, page.next_seq - 1)
        return [Output(chunk.seq, chunk.stream.value, chunk.chunk) for chunk in page.chunks]

    def _retained(self) -> list[Output]:
        state = self._process.read(self.position, _PAGE_BYTES)
        self._tell_loss(state.oldest_seq, state.lost_bytes)
        self.position = max(self.position, state.next_seq - 1)
        return list(state.chunks)

    def _tell_loss(self, oldest_seq: int | None, lost_bytes: int | None, why: str | None = None) -> None:
        if oldest_seq is not None and oldest_seq > self.position + 1 and lost_bytes:
            reason = f": {shown(why, 200)}" if why else ""
            write(2, f"execserver: the box retains no more than this: {lost_bytes} bytes are gone{reason}\n")


def last_lines(outputs: Iterable[Output], count: int) -> list[Output]:
    """Return the end of the output that has so many lines; at most the last 64 MiB of it."""
    kept: deque[Output] = deque()
    lines = held = 0
    for output in outputs:
        kept.append(output)
        held += len(output.data) + _OVERHEAD
        lines += output.data.count(b"\n")
        while kept and (lines - kept[0].data.count(b"\n") > count or held > _MAX_TAIL_BYTES):
            gone = kept.popleft()
            held -= len(gone.data) + _OVERHEAD
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
    except WaitTimeout:
        raise  # an OSError, too
    except OSError as error:
        raise unwritable(error) from None
    finally:
        stdout.close()
        stderr.close()
    return 0
