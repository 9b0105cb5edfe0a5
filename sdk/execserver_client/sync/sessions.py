"""The blocking twin of `execserver_client.sessions`; `build.py docs` writes it from there."""

from __future__ import annotations

from execserver.protocol.session import KeptSession, SessionListEntry
from execserver.protocol.watching import SessionProcess
from execserver_client import sessions as asynchronous
from execserver_client.sync._portal import Portal
from execserver_client.sync.process import Process


class Sessions:
    """`box.sessions`: what a client can do with the sessions of its peer.

    Every method raises `UnsupportedByServer` on a server without kept sessions, and `RequestFailed`.
    """

    def __init__(self, portal: Portal, wrapped: asynchronous.Sessions) -> None:
        self._portal = portal
        self._wrapped = wrapped

    def keep(self, seconds: float, name: str | None = None) -> KeptSession:
        """Keep this session for so long without a connection; 0 ends it with its connection.

        Returns what the server grants.  `name` None leaves the name as it is.
        """
        return self._portal.call(self._wrapped.keep, seconds, name)

    def list(self) -> tuple[SessionListEntry, ...]:
        """Return this session and the kept or named ones of the same peer."""
        return self._portal.call(self._wrapped.list)

    def end(self, session_id: str) -> bool:
        """End a detached session with its processes; return whether there was one."""
        return self._portal.call(self._wrapped.end, session_id)

    def processes(self) -> tuple[SessionProcess, ...]:
        """Return the processes of all sessions that `list` shows."""
        return self._portal.call(self._wrapped.processes)

    def watch(
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
        found = self._portal.call(
            self._wrapped.watch,
            session_id,
            process_id,
            after_seq=after_seq,
            take=take,
            collect_output=collect_output,
        )
        return Process(self._portal, found)
