"""Kept sessions and the processes in them.

A session that is kept stays without a connection for as long as its client asked, up to what the server
allows, and others of the same peer can list it, resume it by its name, and watch its processes.
"""

from __future__ import annotations

from itertools import count
from typing import Final
from uuid import uuid4

from execserver.client.errors import RequestFailed, TransportClosed
from execserver.client.greenlets.router import Router
from execserver.client.operations import sessions as asking
from execserver.client.rules.recovery import SessionState
from execserver.protocol.session import KeptSession, SessionListEntry
from execserver.protocol.watching import SessionProcess, WatchProcessParams
from execserver_client._driving import adrive
from execserver_client._errands import Errands
from execserver_client._flow import Gate
from execserver_client._session import Session
from execserver_client.process import Process

_MS: Final = 1000


class Sessions:
    """`box.sessions`: what a client can do with the sessions of its peer.

    Every method raises `UnsupportedByServer` on a server without kept sessions, and `RequestFailed`.
    """

    def __init__(
        self, session: Session, gate: Gate, router: Router, errands: Errands, close_timeout: float
    ) -> None:
        """Use `Box.sessions` instead; `close_timeout` is that of its processes, in seconds."""
        self._close_timeout = close_timeout
        self._session = session
        self._gate = gate
        self._router = router
        self._errands = errands

    async def keep(self, seconds: float, name: str | None = None) -> KeptSession:
        """Keep this session for so long without a connection; 0 ends it with its connection.

        Returns what the server grants.  `name` None leaves the name as it is.
        """
        keep_ms = round(seconds * _MS)
        return await adrive(self._session, asking.keep(self._session.extensions, keep_ms, name))

    async def list(self) -> tuple[SessionListEntry, ...]:
        """Return this session and the kept or named ones of the same peer."""
        return await adrive(self._session, asking.listing(self._session.extensions))

    async def end(self, session_id: str) -> bool:
        """End a detached session with its processes; return whether there was one."""
        return await adrive(self._session, asking.end(self._session.extensions, session_id))

    async def processes(self) -> tuple[SessionProcess, ...]:
        """Return the processes of all sessions that `list` shows."""
        return await adrive(self._session, asking.processes(self._session.extensions))

    async def watch(
        self,
        session_id: str,
        process_id: str,
        *,
        after_seq: int = 0,
        take: bool = False,
        collect_output: bool = True,
    ) -> Process:
        """Follow a process of another session, with its events after `after_seq` as far as they are retained.

        With `take` it is this session that writes to it from now on.  What a slow client misses comes as
        `OutputGap`.  `collect_output` is as in `start`.  The process is not killed when this client is
        closed; `Process.unwatch` ends the watch.  A lost connection is no reason to fail.
        """
        asking.require(self._session.extensions)
        for losses in count(1):
            params = WatchProcessParams(
                session_id=session_id,
                process_id=process_id,
                watch_id=uuid4().hex,
                after_seq=after_seq,
                take=take,
            )
            try:
                return await self._watch(params, collect_output)
            except TransportClosed:
                if losses > asking.MAX_LOSSES or self._session.state is SessionState.ENDED:
                    raise
        raise AssertionError("unreachable")

    async def _watch(self, params: WatchProcessParams, collect_output: bool) -> Process:
        process = Process(
            self._session,
            self._gate,
            params.watch_id,
            begin=self._errands.begin,
            sandboxed=True,
            collect_output=collect_output,
            after_seq=params.after_seq or 0,
            close_timeout=self._close_timeout,
        )
        self._router.processes[params.watch_id] = process  # before the request: notifications may overtake us
        try:
            found = await adrive(self._session, asking.watch(params))
        except BaseException as error:
            self._router.forget(process, None)
            if not isinstance(error, RequestFailed):  # else whether the server watches is unknown
                self._errands.begin(self._unwatch, params.watch_id)
            raise
        process.writer, process.began_before = found.writer, found.next_seq
        process.watched = True
        return process

    async def _unwatch(self, watch_id: str) -> None:
        await adrive(self._session, asking.unwatch(watch_id))
