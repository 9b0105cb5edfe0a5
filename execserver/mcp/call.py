"""Calls of the tool `shell`: from arguments and sandbox state to a result, or to the contract's error.

Shell tool contract, sections 3 and 4.  Every call has a supervisor of its own, in the sandbox's place at the
zygote; when `run` returns or raises, nothing of the call is left.  What the contract's errors lose, the
output of a command that was ended, goes along in the error's `data`.
"""

from __future__ import annotations

import _socket
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import NamedTuple

from gevent import socket
from gevent.event import Event

from execserver.core.denial import looks_denied
from execserver.mcp.capture import STDERR, STDOUT, decoded
from execserver.mcp.elicitation import Ask
from execserver.mcp.running import Outcome, RunningCall
from execserver.mcp.sandbox_state import SandboxState, before_any_update
from execserver.mcp.shell import folder, shell_argv, shell_environment
from execserver.mcp.stopwatch import Stopwatch
from execserver.mcp.tool import INTERNAL_ERROR, ExecParams, ExecResult, ToolError
from execserver.protocol.errors import InvalidParams, RpcError
from execserver.rules.policy import Policy
from execserver.rules.policy_record import encode_policy
from execserver.services.child import Child
from execserver.services.sandbox import REFUSED, SandboxService
from execserver.services.spawner import Spawner, SpawnSpec
from execserver.services.start_request import Confinement, Watch
from execserver.zygote.supervision.records import Supervision, encode_supervision

_DEFAULT_LIMIT_MS = 10_000
_ATTEMPTS = 5  # of a start whose files change under it
_TIMED_OUT = "sandbox error: command timed out"
_KILLED = "sandbox error: command was killed by a signal"

# Tells how the programs that a shell starts are noticed here, NOTIFY or WRAPPER, or why they are not.
Interception = Callable[[], int | str]


class ShellOptions(NamedTuple):
    """What all calls of a server have in common: paths, and the environment the server was started with.

    With `full_path` rules see the whole path of a program; `wrapper` is the wrapper program's path.
    """

    bash: bytes
    inherited: Mapping[bytes, bytes]
    full_path: bool = False
    wrapper: bytes = b""


class ShellCalls:
    """Runs the calls of one server; how many at a time is its caller's business.

    Each holds up to 4 MiB of output, three descriptors and two processes of ours.
    """

    def __init__(
        self,
        spawner: Spawner,
        sandbox: SandboxService,
        policy: Policy,
        options: ShellOptions,
        interception: Interception,
    ) -> None:
        self._spawner = spawner
        self._sandbox = sandbox
        self._policy = encode_policy(policy)
        self._options = options
        self._interception = interception
        self._server_cwd = _working_directory()

    def run(self, params: ExecParams, state: SandboxState | None, ask: Ask, cancelled: Event) -> ExecResult:
        """Run a command to its end and return what came of it.

        `ask` is called for each program that needs a person's word, in greenlets of its own.  Once
        `cancelled` is set everything is ended.  Killing the greenlet does the same.  Raises ToolError.
        """
        try:
            return self._run(params, state or before_any_update(params.workdir), ask, cancelled)
        except ToolError:
            raise
        except RpcError as error:
            raise _error(error.message) from None

    def _run(self, params: ExecParams, state: SandboxState, ask: Ask, cancelled: Event) -> ExecResult:
        env = shell_environment(self._options.inherited, state)
        spec = SpawnSpec(
            shell_argv(self._options.bash, params), env, folder(self._server_cwd, params.workdir)
        )
        supervision = self._supervision(env)
        confinement = self._confinement(state, spec)
        limit_ms = _DEFAULT_LIMIT_MS if params.timeout_ms is None else params.timeout_ms
        if not limit_ms:
            raise _error(_TIMED_OUT)
        started_ns = time.monotonic_ns()
        stopwatch = Stopwatch(limit_ms * 1_000_000, started_ns)
        with _question_socket() as (ours, theirs):
            spec = spec._replace(confinement=confinement, watch=Watch(supervision, theirs.fileno()))
            child = self._start(state, spec)
            theirs.close()
            with closing(RunningCall(child, ours, stopwatch, ask)) as call:
                outcome = call.wait(cancelled)
                return _result(call, child, outcome, time.monotonic_ns() - started_ns, state.is_enforced)

    def _supervision(self, env: Mapping[bytes, bytes]) -> bytes:
        way = self._interception()
        if isinstance(way, str):
            raise _error(way)
        server_env = [name + b"=" + value for name, value in env.items()]
        options = self._options
        return encode_supervision(
            Supervision(self._policy, options.full_path, way, options.wrapper, server_env)
        )

    def _confinement(self, state: SandboxState, spec: SpawnSpec) -> Confinement | None:
        """Return how the policy is enforced; None when this server enforces nothing."""
        if not state.is_enforced:
            return None
        assert isinstance(spec.env, Mapping)
        context = state.context(self._server_cwd)
        confinement = self._sandbox.process_start(context, spec.cwd, False, spec.env)
        if confinement.refusal:
            raise _error(f"failed to prepare process sandbox: {confinement.refusal.removeprefix(REFUSED)}")
        return confinement

    def _start(self, state: SandboxState, spec: SpawnSpec) -> Child:
        """Start the shell.

        Something of the plan may be replaced before the view is made.  Then there is another plan, and that
        is tried; the same plan would fail again.
        """
        for _ in range(_ATTEMPTS):
            try:
                return self._spawner.spawn(spec)
            except InvalidParams:
                confinement = self._confinement(state, spec)
                if confinement == spec.confinement:
                    raise
                spec = spec._replace(confinement=confinement)
        raise _error("failed to prepare process sandbox: the files it is about keep changing")


def _result(
    call: RunningCall, child: Child, outcome: Outcome, duration_ns: int, enforced: bool
) -> ExecResult:
    """Return the result of a call that is over, or raise the contract's error."""
    capture, exit_code = call.capture, child.exit_code
    output = capture.text()
    kept: dict[str, object] = {"output": output, "timed_out": outcome is Outcome.TIMED_OUT}
    if outcome is Outcome.CANCELLED:
        raise _error("the call was cancelled", kept)
    if outcome is Outcome.TIMED_OUT or exit_code is None:
        raise _error(_TIMED_OUT, kept)
    if child.killed_by:
        raise _error(_KILLED, {**kept, "exit_code": exit_code})
    if exit_code and enforced:
        stdout, stderr = capture.stream(STDOUT), capture.stream(STDERR)
        if looks_denied(exit_code, stdout, stderr, capture.joined()):
            raise _error(
                f"sandbox error: sandbox denied exec error, exit code: {exit_code}, "
                f"stdout: {decoded(stdout)}, stderr: {decoded(stderr)}",
                kept,
            )
    return ExecResult(exit_code, output, duration_ns)


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"  # the folder was removed


@contextmanager
def _question_socket() -> Iterator[tuple[socket.socket, _socket.socket]]:
    """Make a pair, this side's first; both are closed afterwards."""
    near, far = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    ours = socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, near.detach())
    try:
        yield ours, far
    finally:
        ours.close()
        far.close()


def _error(message: str, data: dict[str, object] | None = None) -> ToolError:
    return ToolError(INTERNAL_ERROR, message, data)
