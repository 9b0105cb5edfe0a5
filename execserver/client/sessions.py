"""Kept sessions and the processes in them: an extension of this project's server.

A session that is kept stays without a connection for as long as its client asked, up to what the server
allows, and others of the same peer can list it, resume it by its name, and watch its processes.
"""

from __future__ import annotations

from itertools import count
from uuid import uuid4

from execserver.client.errors import TransportClosed
from execserver.client.greenlets.flow import Gate
from execserver.client.greenlets.router import Router
from execserver.client.greenlets.session import Session
from execserver.client.operations import sessions as asking
from execserver.client.operations.call import drive
from execserver.client.process import RemoteProcess
from execserver.client.rules.recovery import SessionState
from execserver.protocol.session import KeptSession, SessionListEntry
from execserver.protocol.watching import SessionProcess, WatchProcessParams


class RemoteSessions:
    """What a client can do with the sessions of its peer.

    Every method raises `UnsupportedByServer` on a server without kept sessions, and `RequestFailed`.
    """

    def __init__(self, session: Session, gate: Gate, router: Router) -> None:
        self._session = session
        self._gate = gate
        self._router = router

    def session_keep(self, keep_ms: int, name: str | None = None) -> KeptSession:
        """Keep this session for so long without a connection; 0 ends it with its connection.

        Returns what the server grants.  `name` None leaves the name as it is.
        """
        return drive(self._session, asking.keep(self._session.extensions, keep_ms, name))

    def session_list(self) -> tuple[SessionListEntry, ...]:
        """Return this session and the kept or named ones of the same peer."""
        return drive(self._session, asking.listing(self._session.extensions))

    def session_end(self, session_id: str) -> bool:
        """End a detached session with its processes; return whether there was one."""
        return drive(self._session, asking.end(self._session.extensions, session_id))

    def session_processes(self) -> tuple[SessionProcess, ...]:
        """Return the processes of all sessions that `session_list` shows."""
        return drive(self._session, asking.processes(self._session.extensions))

    def watch_process(
        self,
        session_id: str,
        process_id: str,
        *,
        after_seq: int = 0,
        take: bool = False,
        collect_output: bool = True,
    ) -> RemoteProcess:
        """Follow a process of another session, with its events after `after_seq` as far as they are retained.

        With `take` it is this session that writes to it from now on.  What a slow client misses comes as
        `OutputGap`.  `collect_output` is as in `start`.  The process is not killed by `close`;
        `RemoteProcess.unwatch` ends the watch.  A lost connection is no reason to fail.
        """
        asking.require(self._session.extensions)
        for losses in count(1):
            watch_id = uuid4().hex
            try:
                return self._watch(session_id, process_id, watch_id, after_seq, take, collect_output)
            except TransportClosed:
                if losses > asking.MAX_LOSSES or self._session.state is SessionState.ENDED:
                    raise
                drive(self._session, asking.unwatch(watch_id))
        raise AssertionError("unreachable")

    def _watch(
        self,
        session_id: str,
        process_id: str,
        watch_id: str,
        after_seq: int,
        take: bool,
        collect_output: bool,
    ) -> RemoteProcess:
        process = RemoteProcess(
            self._session,
            self._gate,
            watch_id,
            sandboxed=True,
            collect_output=collect_output,
            after_seq=after_seq,
        )
        self._router.processes[watch_id] = process  # before the request: notifications may overtake us
        try:
            params = WatchProcessParams(
                session_id=session_id,
                process_id=process_id,
                watch_id=watch_id,
                after_seq=after_seq,
                take=take,
            )
            found = drive(self._session, asking.watch(params))
            process.writer, process.began_before = found.writer, found.next_seq
        except BaseException:
            self._router.forget(process, None)
            raise
        process.watched = True
        return process
