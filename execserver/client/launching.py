"""Starting processes in a session, and killing those of which nobody knows whether they were started."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import gevent

from execserver.client.errors import ExecServerError, InternalError, RequestFailed, kept
from execserver.client.process import RemoteProcess
from execserver.protocol.process import ExecParams, TerminateParams
from execserver.protocol.process_methods import PROCESS_START, PROCESS_TERMINATE

if TYPE_CHECKING:
    from execserver.client.greenlets.connection import Connection, Posted
    from execserver.client.greenlets.flow import Gate
    from execserver.client.greenlets.router import Router
    from execserver.client.greenlets.session import Session


class Launcher:
    """Starts the processes of one session."""

    def __init__(self, session: Session, gate: Gate, router: Router) -> None:
        self._session = session
        self._gate = gate
        self._router = router
        self._killers: set[gevent.Greenlet[..., None]] = set()  # of what was perhaps started, for nobody
        self._ahead: tuple[RemoteProcess, Posted] | None = None

    def start(self, params: ExecParams, collect_output: bool) -> RemoteProcess:
        """Start a process.  Raises as `ExecServerClient.start`."""
        earlier = self._router.processes.get(params.process_id)
        process = self._expected(params, collect_output)
        try:
            self._session.request(PROCESS_START.name, params)
        except RequestFailed:
            self._router.forget(process, earlier)
            raise
        except BaseException:
            self._router.forget(process, earlier)
            # Whether the server has started it is unknown.  With the id of a living one it has not.
            if earlier is None:
                self._kill_later(process)
            raise
        return process

    def start_ahead(self, params: Callable[[], ExecParams], connection: Connection) -> None:
        """Ask for the first process of a session, right behind that; `started_ahead` takes the answer."""
        asked = params()
        self._ahead = self._expected(asked, True), connection.post(PROCESS_START.name, asked)

    def started_ahead(self) -> RemoteProcess | None:
        """See `ExecServerClient.started_ahead`."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        process, posted = ahead
        try:
            outcome = posted.outcome()
            if isinstance(outcome, ExecServerError):
                raise kept(outcome)
        except RequestFailed as error:
            self._router.forget(process, None)
            if isinstance(error, InternalError):
                raise
            return None
        except BaseException:
            self._router.forget(process, None)
            self._kill_later(process)
            raise
        return process

    def kill(self, timeout: float) -> None:
        """Kill what still runs, or was perhaps started, within so many seconds."""
        own = [each.process_id for each in self._router.processes.values() if not each.watched]
        killers = [*self._killers, *(gevent.spawn(self._terminate, process_id) for process_id in own)]
        gevent.joinall(killers, timeout=timeout)
        gevent.killall(killers)

    def _expected(self, params: ExecParams, collect_output: bool) -> RemoteProcess:
        """Return a process before it is asked for: its first notifications may overtake the answer."""
        process = self._router.processes[params.process_id] = RemoteProcess(
            self._session,
            self._gate,
            params.process_id,
            sandboxed=params.sandbox is not None,
            collect_output=collect_output,
        )
        return process

    def _kill_later(self, process: RemoteProcess) -> None:
        killer = gevent.spawn(self._terminate, process.process_id)
        self._killers.add(killer)
        killer.rawlink(self._killers.discard)

    def _terminate(self, process_id: str) -> None:
        """Kill a process that nobody will use, now or after a resume."""
        try:
            self._session.call(PROCESS_TERMINATE, TerminateParams(process_id=process_id), resend=True)
        except ExecServerError:
            pass  # the session has ended, and the server kills its processes by itself


def ahead_of(
    launcher: Launcher, params: Callable[[], ExecParams] | None
) -> Callable[[Connection], object] | None:
    """Return what `Session.open` calls to start a process ahead; None where there is none."""
    return None if params is None else partial(launcher.start_ahead, params)
