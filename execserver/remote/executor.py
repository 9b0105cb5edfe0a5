"""The executor: registers, stays connected, and serves every harness that the registry lets in.

It runs until it is closed or a fatal error (`RemoteError`).  Sessions and processes survive the loss of the
WebSocket, which is opened again as often as necessary.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NoReturn

import gevent

from execserver.remote.admission import Serve
from execserver.remote.config import RemoteEnvironmentConfig
from execserver.remote.connecting import RendezvousConnector
from execserver.remote.errors import one_line
from execserver.remote.registering import Registering
from execserver.remote.rendezvous import ConnectFailed, RendezvousSocket, UpgradeRefused
from execserver.remote.rendezvous_urls import shown
from execserver.remote.streams import StreamTable
from execserver.remote.tools import Tools

_log = logging.getLogger(__name__)

_SHUTDOWN_NOTICE_S = 0.5
ACKNOWLEDGED_RECORDS_VARIABLE = "EXECSERVER_ACKNOWLEDGED_RECORDS"
"""With 1, harnesses that speak upstream's unmerged form of relay records are answered alike."""


class RemoteExecutor:
    """One environment; `serve` starts a connection over a new stream."""

    def __init__(
        self,
        config: RemoteEnvironmentConfig,
        serve: Serve,
        tools: Tools | None = None,
        registering: Registering | None = None,
        former: Sequence[str] = (),
    ) -> None:
        """`registering` has begun, if given; `former` are streams of a program before this one."""
        self._config = config
        self._serve = serve
        self._tools = tools or Tools()
        self._connector = RendezvousConnector(self._tools.environ)
        self._registering = registering or Registering(config, self._tools)
        self._streams: StreamTable | None = None
        self._socket: RendezvousSocket | None = None
        self._former = former
        self._is_leaving = False

    def run(self) -> None:
        """Serve for ever.  Raises RemoteError when that cannot go on."""
        try:
            self._run()
        finally:
            self._registering.close()

    def _run(self) -> NoReturn:
        first = self._registering.first()
        ask = first.registry.ask
        numbered = self._tools.environ.get(ACKNOWLEDGED_RECORDS_VARIABLE) == "1"
        self._streams = StreamTable(
            *(first.keys, first.registration, ask, self._serve, self._tools.clock), numbered=numbered
        )
        _log.info("serving environment %s as %r", first.environment_id, self._config.name)
        while True:
            sent_away = False
            try:
                self._connect_and_serve(self._streams)
                sent_away = self._socket is not None and self._socket.was_sent_away
            except UpgradeRefused as refused:
                # 4xx means that the address is no longer valid; the same key gets a new one.
                reason = str(refused)
                if 400 <= refused.status < 500:
                    _log.warning("%s; registering again", refused)
                    self._streams.registration = self._registering.again(first)
            except ConnectFailed as failed:
                reason = f"cannot connect to {shown(self._streams.registration.url)}: {failed}"
            else:
                reason = self._socket.ended_because if self._socket is not None else ""
            pause = self._tools.backoff.next_pause(sent_away=sent_away)
            if not self._is_leaving:
                _log.warning("%s; reconnecting in %.1f s", one_line(reason), pause)
            self._tools.sleep(pause)

    @property
    def stream_ids(self) -> list[str]:
        """The ids of the streams that harnesses have, or have asked for."""
        return list(self._former) if self._streams is None else [*self._former, *self._streams.ids]

    def close(self) -> None:
        """End all streams in order and close the WebSocket; the caller then kills what runs `run`."""
        self._is_leaving = True
        if self._streams is None or self._socket is None:
            return
        self._streams.close()
        deadline = self._tools.clock() + _SHUTDOWN_NOTICE_S
        while self._streams.count and self._tools.clock() < deadline:
            gevent.sleep(0.01)
        self._socket.close()

    def _connect_and_serve(self, streams: StreamTable) -> None:
        """Serve one WebSocket to its end.  Raises ConnectFailed if there is none."""
        url = streams.registration.url
        connected = RendezvousSocket.connect(url, timing=self._tools.timing, connector=self._connector)
        self._socket = connected
        began = self._tools.clock()
        _log.info("connected to %s; waiting for a harness", shown(url))
        streams.attach(connected.writer)
        streams.end_former(self._former)
        self._former = ()
        was_used = False
        try:
            while (message := connected.receive()) is not None:
                was_used = streams.take(message) or was_used
        finally:
            streams.detach()
            connected.close()
        self._tools.backoff.ended(self._tools.clock() - began, was_used=was_used)
