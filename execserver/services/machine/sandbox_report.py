"""Which sandbox works here: the server runs `execserver doctor --json` in a process of its own and reads it.

The probes must not be forks of the server, which has threads, many descriptors and secrets.  The doctor is a
child of the zygote like any command, so it meets the same limits, filters and profiles as everything that
will be confined.  It runs once, when first needed or shortly after the start, and again when the bubblewrap
it found is replaced.  An answer that is no report is not kept, and no back end is chosen then.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Mapping, Sequence

import gevent
import msgspec
from gevent.lock import BoundedSemaphore
from gevent.os import nb_read

from execserver.protocol.environment import EnvironmentSandboxResponse
from execserver.protocol.errors import InternalError, RpcError
from execserver.protocol.record import encode_record
from execserver.sandbox.backends import selection
from execserver.sandbox.backends.bwrap import identity_of
from execserver.sandbox.backends.report import Report, from_members
from execserver.sandbox.plan import SandboxPlan
from execserver.services.launch.child import Child
from execserver.services.launch.spawner import Spawner, SpawnSpec
from execserver.zygote.confinement import Confinement

_log = logging.getLogger(__name__)

_LIMIT_S = 20.0  # each probe has its own limit; together they stay below this one
_ANSWER_BYTES = 256 * 1024
_FIRST_LOOK_S = 2.0  # after the start: clients that wait for the server come first
# The variables that the doctor reads: where bubblewrap is, and where certain directories are.
_VARIABLES = (b"PATH", b"HOME", b"TMPDIR", b"XDG_RUNTIME_DIR", b"XDG_CACHE_HOME", b"EXECSERVER_CACHE_DIR")


class SandboxReports:
    """The report about this machine, made once, and the choice of back ends by it."""

    def __init__(self, spawner: Spawner, command: Sequence[bytes], inherited: Mapping[bytes, bytes]) -> None:
        """`command` starts the doctor; `inherited` is the environment the server was started with."""
        self._spawner = spawner
        env = {name: inherited[name] for name in _VARIABLES if name in inherited}
        self._spec = SpawnSpec(list(command), env, _working_directory())
        self._turn = BoundedSemaphore(1)  # requests that come meanwhile wait for the one doctor
        self._report: Report | None = None
        self._answer = msgspec.Raw()
        self._first_look: gevent.Greenlet[[], None] | None = None

    def start(self, after_s: float = _FIRST_LOOK_S) -> None:
        """Ask the doctor `after_s` seconds from now, and log its findings."""
        self._first_look = gevent.spawn_later(after_s, self._look)

    def close(self) -> None:
        """Cancel the first look."""
        if self._first_look is not None:
            self._first_look.kill(block=False)

    def report(self) -> Report:
        """Return the report; the first call waits for the doctor.  Raises InternalError without a report."""
        with self._turn:
            if self._report is None or _replaced(self._report):
                self._report = self._take(self._ask())
                self._tell(self._report)
            return self._report

    def answer(self) -> msgspec.Raw:
        """Return the result of `environment/sandbox`."""
        self.report()
        return self._answer

    def choose(self, plan: SandboxPlan, *, shares_processes: bool = False) -> Confinement | str:
        """Return the back end for a plan as a confinement without its plan, or why none works here."""
        choice = selection.choose(plan, self.report(), shares_processes=shares_processes)
        if isinstance(choice, selection.Refusal):
            return str(choice)
        return Confinement(choice.name, detail=choice.record)

    def _take(self, answer: bytes) -> Report:
        try:
            response = msgspec.json.decode(answer, type=EnvironmentSandboxResponse)
        except msgspec.DecodeError:
            raise InternalError("the doctor gave no report") from None
        self._answer = msgspec.Raw(encode_record(response))
        return from_members(msgspec.json.decode(answer))

    def _look(self) -> None:
        try:
            self.report()
        except RpcError as error:
            _log.warning("which sandbox works here is unknown: %s", error.message)

    def _tell(self, report: Report) -> None:
        refused = any(
            isinstance(selection.choose(plan, report), selection.Refusal)
            for plan in selection.policies().values()
        )
        _log.log(logging.WARNING if refused else logging.INFO, "%s", selection.summary(report))

    def _ask(self) -> bytes:
        child = self._spawner.spawn(self._spec)
        try:
            answer = bytes(gevent.with_timeout(_LIMIT_S, _read_all, child, timeout_value=b""))
        finally:
            for _, descriptor in child.outputs:
                os.close(descriptor)
            if not child.exited:
                child.signal(signal.SIGKILL)
        return answer


def _replaced(report: Report) -> bool:
    """Return whether the bubblewrap that was probed is another file by now, as after an upgrade."""
    # The native back end comes before bubblewrap, so a new bubblewrap would change nothing.
    if report.bwrap is None or report.native:
        return False
    try:
        return identity_of(os.stat(report.bwrap.path)) != report.bwrap.identity
    except OSError:
        return True


def _read_all(child: Child) -> bytes:
    """Return the stdout of a process up to its end, at most `_ANSWER_BYTES`; stderr is left unread."""
    (_, stdout), *_ = child.outputs
    answer = b""
    while len(answer) < _ANSWER_BYTES:
        piece = nb_read(stdout, _ANSWER_BYTES)
        if not piece:
            break
        answer += piece
    return answer


def _working_directory() -> bytes:
    try:
        folder = os.getcwdb()
    except OSError:
        return b"/"  # the directory was removed
    # A server started through `sudo -u` may stand in a directory that its own user cannot enter.
    return folder if os.access(folder, os.X_OK) else b"/"
