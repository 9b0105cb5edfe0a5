"""Passes notifications to the processes and HTTP streams of one session, by id."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import gevent
import msgspec

from execserver.client import wire
from execserver.client.errors import ExecServerError
from execserver.client.event_log import Event, Output
from execserver.client.process import RemoteProcess

if TYPE_CHECKING:
    from execserver.client.file_watches import FileWatch
    from execserver.client.http import HttpStream
    from execserver.client.ports import RemotePorts


class Router:
    """The session's listener.  Notifications of unknown ids or kinds are ignored."""

    def __init__(self) -> None:
        self.processes: dict[str, RemoteProcess] = {}
        self.streams: dict[str, HttpStream] = {}
        self.watches: dict[str, FileWatch] = {}
        self._ports: RemotePorts | None = None  # until the session ends, which they refer to
        self._ended = False
        self.on_change: Callable[[bool], None] | None = None

    def follow_ports(self, ports: RemotePorts) -> None:
        """Pass on what concerns forwarded ports, until the session ends."""
        if not self._ended:
            self._ports = ports

    def on_notification(self, method: str, params: msgspec.Raw) -> None:
        """Pass a notification to its process or stream.  Raises `ProtocolViolation` for an invalid one."""
        addressed = wire.decode_event(method, params)
        if addressed is not None:
            self._deliver(*addressed)
        elif method.startswith("port/"):
            if self._ports is not None:
                self._ports.on_notification(method, params)
        elif method.startswith("http/"):
            self._on_body(method, params)
        elif method.startswith("process/"):
            self._on_watched(method, params)
        elif method.startswith("fs/"):
            self._on_changes(method, params)

    def _on_body(self, method: str, params: msgspec.Raw) -> None:
        from execserver.protocol.http import HttpRequestBodyDeltaNotification  # late: few make requests
        from execserver.protocol.methods import HTTP_REQUEST_BODY_DELTA

        if method != HTTP_REQUEST_BODY_DELTA.name:
            return
        delta = wire.decode(HttpRequestBodyDeltaNotification, params, method)
        stream = self.streams.get(delta.request_id)
        if stream is not None and stream.deliver(delta):
            del self.streams[delta.request_id]

    def _on_changes(self, method: str, params: msgspec.Raw) -> None:
        from execserver.protocol.file_watches import FsChangesNotification  # late: few watch folders
        from execserver.protocol.own_methods import FS_CHANGES

        if method != FS_CHANGES.name:
            return
        batch = wire.decode(FsChangesNotification, params, method)
        if (watch := self.watches.get(batch.watch_id)) is not None:
            watch.deliver(batch)

    def _on_watched(self, method: str, params: msgspec.Raw) -> None:
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

    def on_output(self, process_id: str, output: Output) -> None:
        """Pass output to its process."""
        self._deliver(process_id, output)

    def _deliver(self, process_id: str, event: Event) -> None:
        process = self.processes.get(process_id)
        if process is not None:
            process.deliver(event)
            self._forget_if_finished(process)

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
        # Each in a greenlet: `catch_up` waits for an answer, and the listener must not block.
        for process in list(self.processes.values()):
            gevent.spawn(self.catch_up, process)
        for watch in list(self.watches.values()):
            gevent.spawn(watch.resume)
        if self._ports is not None:
            self._ports.on_resumed()
        if self.on_change is not None:
            self.on_change(True)

    def catch_up(self, process: RemoteProcess) -> None:
        """Bring one process up to date with the server."""
        process.catch_up()
        self._forget_if_finished(process)

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

    def forget(self, process: RemoteProcess, instead: RemoteProcess | None) -> None:
        """Remove a process that was not started; `instead` is the one that had its id before."""
        if self.processes.get(process.process_id) is process:
            del self.processes[process.process_id]
            if instead is not None:
                self.processes[process.process_id] = instead

    def _forget_if_finished(self, process: RemoteProcess) -> None:
        if process.finished and self.processes.get(process.process_id) is process:
            del self.processes[process.process_id]
