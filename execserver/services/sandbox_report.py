"""What sandbox works here, asked of this program itself: `execserver doctor --json` in a process of its own.

The probing forks must not come from the server, which has threads, many descriptors and a secret or two; the
doctor comes from the zygote like any child, so it meets the same limits, filters and profiles as everything
that will be confined.  It is asked once, when first needed or shortly after the start, and again when the
bubblewrap it found is replaced; an answer that is no report is not kept, and nothing is chosen then.
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
from execserver.sandbox import back_ends
from execserver.sandbox.bwrap import encode, identity_of
from execserver.sandbox.plan import ViewPlan
from execserver.sandbox.report import Report, from_members
from execserver.services.child import Child
from execserver.services.spawner import Spawner, SpawnSpec
from execserver.zygote.records import BACK_END_BUBBLEWRAP, BACK_END_LANDLOCK, BACK_END_NATIVE

_log = logging.getLogger(__name__)

_LIMIT_S = 20.0  # every trial has a limit of its own; together they stay below
_ANSWER_BYTES = 256 * 1024
_FIRST_LOOK_S = 2.0  # after the start: the clients that wait for the server come first
# What the doctor looks at of the server's environment: where bubblewrap is, and where folders are.
_VARIABLES = (b"PATH", b"HOME", b"TMPDIR", b"XDG_RUNTIME_DIR", b"XDG_CACHE_HOME", b"EXECSERVER_CACHE_DIR")
_NUMBERS = {
    back_ends.NATIVE: BACK_END_NATIVE,
    back_ends.BUBBLEWRAP: BACK_END_BUBBLEWRAP,
    back_ends.LANDLOCK: BACK_END_LANDLOCK,
}


class SandboxReports:
    """The report about this machine, made once, and what follows from it."""

    def __init__(self, spawner: Spawner, command: Sequence[bytes], inherited: Mapping[bytes, bytes]) -> None:
        """`command` starts the doctor; `inherited` is the environment the server was started with."""
        self._spawner = spawner
        env = {name: inherited[name] for name in _VARIABLES if name in inherited}
        self._spec = SpawnSpec(list(command), env, _working_directory())
        self._turn = BoundedSemaphore(1)
        self._report: Report | None = None
        self._answer = msgspec.Raw()
        self._first_look: gevent.Greenlet[[], None] | None = None

    def start(self, after_s: float = _FIRST_LOOK_S) -> None:
        """Look shortly after the start, and say in the log what was found."""
        self._first_look = gevent.spawn_later(after_s, self._look)

    def close(self) -> None:
        """Look no more."""
        if self._first_look is not None:
            self._first_look.kill(block=False)

    def report(self) -> Report:
        """Return the report; the first time this waits for the doctor.  Raises InternalError without one."""
        with self._turn:
            if self._report is None or _replaced(self._report):
                self._report = report = self._take(self._ask())
                self._spawner.bubblewrap = b"" if report.bwrap is None else encode(report.bwrap)
                self._tell(self._report)
            return self._report

    def answer(self) -> msgspec.Raw:
        """Return the result of `environment/sandbox`."""
        self.report()
        return self._answer

    def choose(self, plan: ViewPlan) -> int | str:
        """Return the number of the back end for a plan, or why nothing enforces it here."""
        choice = back_ends.choose(plan, self.report())
        return _NUMBERS[choice.name] if isinstance(choice, back_ends.BackEnd) else str(choice)

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
            isinstance(back_ends.choose(plan, report), back_ends.Refusal)
            for plan in back_ends.policies().values()
        )
        _log.log(logging.WARNING if refused else logging.INFO, "%s", back_ends.summary(report))

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
    """Tell whether the bubblewrap that was tried is another file by now, as after an upgrade."""
    if report.bwrap is None or report.native:
        return False
    try:
        return identity_of(os.stat(report.bwrap.path)) != report.bwrap.identity
    except OSError:
        return True


def _read_all(child: Child) -> bytes:
    """Return what a process writes to stdout up to its end; stderr is left unread."""
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
        return b"/"  # the folder was removed
    # Started by root for somebody else, as with sudo, we may stand where nothing of ours can be started.
    return folder if os.access(folder, os.X_OK) else b"/"
