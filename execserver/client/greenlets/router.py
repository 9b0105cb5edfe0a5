"""Passes notifications to the processes, watches and HTTP streams of one session, by id.

No I/O: both clients use it, the one for gevent and the one for asyncio.  What has to wait for an answer is
handed to the owner, who begins it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from execserver.client.errors import ExecServerError
from execserver.client.rules import wire
from execserver.client.rules.event_log import Event
from execserver.protocol.lifting import JsonText

if TYPE_CHECKING:
    from execserver.protocol.file_watches import FsChangesNotification
    from execserver.protocol.http import HttpRequestBodyDeltaNotification


class Follower(Protocol):
    """What learns that it can no longer go on."""

    def fail(self, error: ExecServerError) -> None:
        """Note why; must not block."""


class Followed(Follower, Protocol):
    """A handle of a process."""

    process_id: str
    watched: bool
    writer: bool

    @property
    def finished(self) -> bool:
        """True once nothing more can come."""

    def deliver(self, event: Event) -> bool:
        """Take an event, without blocking; return whether nothing more can come."""

    def deliver_gap(self, first_seq: int, last_seq: int, lost_bytes: int | None) -> None:
        """Note that events will not come."""

    def catch_up(self, settled: Callable[[Any], None]) -> Any:
        """Learn what was missed, then call `settled` with itself."""


class Stream(Follower, Protocol):
    """A response that is being received."""

    def deliver(self, delta: HttpRequestBodyDeltaNotification) -> bool:
        """Take a piece; return whether it was the last one."""


class Watch(Follower, Protocol):
    """A watched folder."""

    def deliver(self, batch: FsChangesNotification) -> None:
        """Take changes; must not block."""

    def resume(self) -> Any:
        """Begin to watch again on a new connection."""


class Ports(Protocol):
    """The forwarded ports."""

    def on_notification(self, method: str, params: JsonText) -> None:
        """Take a notification; must not block."""

    def on_resumed(self) -> None:
        """Note that the session goes on, on a new connection."""

    def on_ended(self, error: ExecServerError) -> None:
        """Note that the session will not go on."""


Begin = Callable[..., object]
"""Calls a function with arguments where it may wait: in a greenlet, or (a coroutine function) as a task."""


class Router:
    """The session's listener.  Notifications of unknown ids or kinds are ignored."""

    def __init__(self, begin: Begin) -> None:
        self.processes: dict[str, Followed] = {}
        self.streams: dict[str, Stream] = {}
        self.watches: dict[str, Watch] = {}
        self.on_change: Callable[[bool], None] | None = None
        self._begin = begin
        self._ports: Ports | None = None  # until the session ends, which they refer to
        self._ended = False

    def follow_ports(self, ports: Ports) -> None:
        """Pass on what concerns forwarded ports, until the session ends."""
        if not self._ended:
            self._ports = ports

    def on_notification(self, method: str, params: JsonText) -> None:
        """Pass a notification to its process or stream.  Raises `ProtocolViolation` for an invalid one."""
        addressed = wire.decode_event(method, params)
        if addressed is not None:
            self.on_output(*addressed)
        elif method.startswith("port/"):
            if self._ports is not None:
                self._ports.on_notification(method, params)
        elif method.startswith("http/"):
            self._on_body(method, params)
        elif method.startswith("process/"):
            self._on_watched(method, params)
        elif method.startswith("fs/"):
            self._on_changes(method, params)

    def _on_body(self, method: str, params: JsonText) -> None:
        from execserver.protocol.http import HttpRequestBodyDeltaNotification  # late: few make requests
        from execserver.protocol.methods import HTTP_REQUEST_BODY_DELTA

        if method != HTTP_REQUEST_BODY_DELTA.name:
            return
        delta = wire.decode(HttpRequestBodyDeltaNotification, params, method)
        stream = self.streams.get(delta.request_id)
        if stream is not None and stream.deliver(delta):
            del self.streams[delta.request_id]

    def _on_changes(self, method: str, params: JsonText) -> None:
        from execserver.protocol.file_watches import FsChangesNotification  # late: few watch folders
        from execserver.protocol.own_methods import FS_CHANGES

        if method != FS_CHANGES.name:
            return
        batch = wire.decode(FsChangesNotification, params, method)
        if (watch := self.watches.get(batch.watch_id)) is not None:
            watch.deliver(batch)

    def _on_watched(self, method: str, params: JsonText) -> None:
        from execserver.protocol.own_methods import PROCESS_GAP, PROCESS_TAKEN  # late: few watch others
        from execserver.protocol.watching import GapNotification, TakenNotification

        if method == PROCESS_GAP.name:
            gap = wire.decode(GapNotification, params, method)
            if (process := self.processes.get(gap.process_id)) is not None:
                process.deliver_gap(gap.first_seq, gap.last_seq, gap.lost_bytes)
        elif method == PROCESS_TAKEN.name:
            taken = wire.decode(TakenNotification, params, method)
            if (process := self.processes.get(taken.process_id)) is not None:
                process.writer = taken.writer

    def on_output(self, process_id: str, event: Event) -> None:
        """Pass output, or another event, to its process."""
        process = self.processes.get(process_id)
        if process is not None and process.deliver(event):
            self.forget_if_finished(process)

    def on_lost(self, error: ExecServerError) -> None:
        """Fail the HTTP streams: they belong to the lost connection."""
        streams = list(self.streams.values())
        self.streams.clear()  # the same dictionary: who makes requests has it, too
        for stream in streams:
            stream.fail(error)
        if self.on_change is not None:
            self.on_change(False)

    def on_resumed(self) -> None:
        """Have every open process ask for what it missed."""
        for process in list(self.processes.values()):
            self._begin(process.catch_up, self.forget_if_finished)
        for watch in list(self.watches.values()):
            self._begin(watch.resume)
        if self._ports is not None:
            self._ports.on_resumed()
        if self.on_change is not None:
            self.on_change(True)

    def on_ended(self, error: ExecServerError) -> None:
        """Fail everything that is still open."""
        processes, self.processes = self.processes, {}
        for process in processes.values():
            process.fail(error)
        watches, self.watches = self.watches, {}
        for watch in watches.values():
            watch.fail(error)
        self._ended = True
        if self._ports is not None:
            self._ports.on_ended(error)
            self._ports = None
        self.on_lost(error)

    def forget(self, process: Followed, instead: Followed | None) -> None:
        """Remove a process that was not started; `instead` is the one that had its id before."""
        if self.processes.get(process.process_id) is process:
            del self.processes[process.process_id]
            if instead is not None:
                self.processes[process.process_id] = instead

    def forget_if_finished(self, process: Followed) -> None:
        """Remove a process for which nothing more can come."""
        if process.finished and self.processes.get(process.process_id) is process:
            del self.processes[process.process_id]
