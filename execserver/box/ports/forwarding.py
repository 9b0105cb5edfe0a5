"""TCP connections through a box: from here to what the box reaches, from the box to what is reached here.

Listens on the loopback unless another address is named.  At most 256 connections at a time; further ones
wait in the kernel.  A connection holds at most the server's window each way; what is not read stops its
sender.
Streams go on over a lost connection to the box.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import gevent
from gevent import socket
from gevent.event import AsyncResult
from gevent.hub import get_hub
from gevent.pool import Group

from execserver.box.commands.notices import Notices
from execserver.box.commands.running import open_client
from execserver.box.connecting import Box, asking, out_of_patience, patience, told, unreachable
from execserver.box.interrupts import not_ignored
from execserver.box.ports import socks
from execserver.box.ports.accepting import Doors
from execserver.box.ports.forwards import Forward, Place
from execserver.box.ports.passage import SHORT_BYTES, Passage
from execserver.box.shown import shown
from execserver.client.errors import ExecServerError, RequestFailed
from execserver.client.rules.recovery import SessionState
from execserver.eventloop.ends import End, of_gevent
from execserver.leaving import failure, reason, write
from execserver.own_process import keep_freed_buffers

if TYPE_CHECKING:
    from execserver.client.client import ExecServerClient
    from execserver.client.ports import Opened, PortListener, PortStream

_CONNECT_S: Final = 10.0
_CHECK_S: Final = 1.0
_LEAVE_S: Final = 2.0  # until the box knows of the end
_BY_SIGNAL: Final = 128
_OF_THE_SYSTEM: Final = "os error"  # in the words of a server


class Forwarder:
    """Owns the listeners and connections between `run` and its return."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._client: ExecServerClient = open_client(box)
        keep_freed_buffers()
        self._notices = Notices(box.name, None, has_escapes=False)
        self._doors = Doors()
        self._passages: set[Passage] = set()
        self._opening: dict[End, tuple[Place, float]] = {}  # whose answer nobody waits for, and since when
        self._tasks = Group()  # of connections that have to wait for something else
        self._workers: list[gevent.Greenlet[[], None]] = []
        self._end: AsyncResult[int] = AsyncResult()

    def run(self, here: Sequence[Forward], there: Sequence[Forward], proxies: Sequence[Place]) -> int:
        """Forward until a signal, or until the box is lost; return the exit status.  Raises Leave."""
        watchers = []
        try:
            if self._client.extensions.port_forward is None:
                raise unreachable(f"{shown(self._box.name, 200)}: this server forwards no ports", _CURE)
            for forward in here:
                self._listen(forward.listen, partial(self._lead, forward.target), str(forward.target))
            for proxy in proxies:
                self._listen(proxy, lambda end: self._tasks.spawn(self._serve_proxy, end), "SOCKS 5")
            for forward in there:
                self._listen_there(forward)
            self._client.watch_connection(self._notices.changed)
            for number in not_ignored((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
                watcher = get_hub().loop.signal(number)
                watcher.start(self._end.set, _BY_SIGNAL + number)
                watchers.append(watcher)
            self._workers.append(gevent.spawn(self._watch))
            return cast(int, self._end.get())
        finally:
            for watcher in watchers:
                watcher.close()
            self._close()

    def _watch(self) -> None:
        while self._client.state is not SessionState.ENDED:
            gevent.sleep(_CHECK_S)
            self._give_up_late(time.monotonic())
        self._notices.say(f"{shown(self._box.name, 200)} is lost")
        self._end.set(255)

    def _close(self) -> None:
        self._client.watch_connection(lambda is_back: None)
        self._notices.close()
        self._doors.close()
        gevent.killall(self._workers)
        self._tasks.kill()
        for passage in tuple(self._passages):
            passage.finish()
        if self._client.state is SessionState.OPEN:
            # With this session the box ends what it opens just now, and what is still to be told to end.
            with suppress(ExecServerError), patience(_LEAVE_S):
                self._client.session_keep(0)
        self._client.close()

    def _listen(self, at: Place, take: Callable[[End], object], leads_to: str) -> None:
        try:
            found = self._doors.listen(at, take)
        except OSError as error:
            raise failure(f"cannot listen on {at}: {reason(error)}", "choose another port") from None
        write(1, f"{found} -> {leads_to} at {shown(self._box.name, 200)}\n")

    def _lead(self, target: Place, end: End) -> None:
        """Lead a connection to a place that the box reaches.  Called in the event loop."""
        first = _come_already(end)
        opened = partial(self._opened, end)
        self._opening[end] = target, time.monotonic()
        if not self._client.ports.open_at_once(target.host, target.port, first, opened):
            del self._opening[end]
            self._tasks.spawn(self._lead_later, target, end, first)

    def _lead_later(self, target: Place, end: End, first: bytes) -> None:
        try:
            with patience():
                stream = self._client.ports.open(target.host, target.port, first=first)
        except ExecServerError as error:
            self._refused(target, end, error)
        else:
            self._pass_on(end, stream)

    def _opened(self, end: End, found: Opened | ExecServerError) -> None:
        target, _ = self._opening.pop(end, (None, 0.0))
        if isinstance(found, ExecServerError):
            if target is not None:
                self._refused(target, end, found)
        elif target is not None:
            self._pass_on(end, *found)
        else:
            self._tasks.spawn(found.stream.drop)  # it was given up

    def _refused(self, target: Place, end: End, error: ExecServerError) -> None:
        self._notices.say(f"{target}: {shown(told(error), 300)}")
        self._end_of(end)

    def _give_up_late(self, now: float) -> None:
        """Do for openings that nobody waits for what `patience` does for others."""
        for end, (target, begun) in tuple(self._opening.items()):
            if (late := out_of_patience(now - begun)) is not None:
                del self._opening[end]
                self._refused(target, end, late)

    def _end_of(self, end: End) -> None:
        end.close()
        self._doors.give_back()

    def _pass_on(self, end: End, stream: PortStream, rest: bytes = b"") -> None:
        passage = Passage(end, stream, self._passed)
        self._passages.add(passage)
        passage.begin(rest)

    def _passed(self, passage: Passage) -> None:
        self._passages.discard(passage)
        self._doors.give_back()

    def _serve_proxy(self, end: End) -> None:
        stream = None
        try:
            stream = self._proxied(end)
        except (OSError, ExecServerError, socks.NoRequest):
            pass
        finally:
            if stream is None:
                self._end_of(end)
        if stream is not None:
            self._pass_on(end, stream)

    def _proxied(self, end: End) -> PortStream | None:
        target = socks.wanted(end)
        try:
            with patience():
                stream = self._client.ports.open(target.host, target.port)
        except RequestFailed as error:
            socks.answer(end, socks.REFUSED if _OF_THE_SYSTEM in error.message else socks.NOT_ALLOWED)
            return None
        try:
            socks.answer(end, socks.GRANTED)
        except BaseException:
            stream.drop()
            raise
        return stream

    def _listen_there(self, forward: Forward) -> None:
        with asking(self._box):
            try:
                listener = self._client.ports.listen(forward.listen.host, forward.listen.port)
            except RequestFailed as error:
                if _OF_THE_SYSTEM not in error.message:
                    raise
                text = f"{shown(self._box.name, 200)}: cannot listen on {forward.listen}"
                raise failure(f"{text}: {shown(told(error), 300)}", "choose another port") from None
        self._workers.append(gevent.spawn(lambda: self._accept(listener, forward.target)))
        found = Place(listener.address.host, listener.address.port)
        where = shown(f"{found} at {self._box.name}", 300)
        write(1, f"{where} -> {forward.target} here\n")

    def _accept(self, listener: PortListener, target: Place) -> None:
        while (stream := listener.accept()) is not None:
            self._doors.take_place()
            self._tasks.spawn(self._connect, stream, target)

    def _connect(self, stream: PortStream, target: Place) -> None:
        try:
            end = of_gevent(socket.create_connection((target.host, target.port), _CONNECT_S))
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            self._notices.say(f"{target}: {error.strerror or error}")
            stream.close()
            self._doors.give_back()
        else:
            self._pass_on(end, stream)


def _come_already(end: End) -> bytes:
    """Return the first bytes of whoever has connected, if they are there: they go along with the opening."""
    try:
        return end.recv_now(SHORT_BYTES)
    except OSError:
        return b""  # nothing yet, or an error that the next read meets


_CURE: Final = "use a newer execserver there, or one without `--allow-forward none`"
