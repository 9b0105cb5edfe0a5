"""Calls of the tool `shell`: from arguments and sandbox state to a result, or to the contract's error.

Shell tool contract.  Every call has an exec supervisor of its own, which the zygote starts in place of the
sandbox init.  When `run` returns or raises, nothing of the call is left.  The contract's errors lose the
output of a command that was ended; here it goes along in the `data` of the error.
"""

from __future__ import annotations

import _socket
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

from gevent import socket
from gevent.event import Event

from execserver.core.denial import looks_denied
from execserver.mcp.call_timer import CallTimer
from execserver.mcp.elicitation import Ask
from execserver.mcp.output_capture import STDERR, STDOUT, decoded
from execserver.mcp.running import Outcome, RunningCall
from execserver.mcp.sandbox_state import SandboxState, before_any_update
from execserver.mcp.shell import check_size, folder, shell_argv, shell_environment
from execserver.mcp.tool import INTERNAL_ERROR, ExecParams, ExecResult, ToolError
from execserver.protocol.errors import RpcError, os_error_text
from execserver.protocol.permissions import DISABLED, PermissionProfile
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.rules.policy import Policy
from execserver.rules.policy_record import encode_policy
from execserver.services.confinement.current_plan import SandboxNotMade, with_current_plan
from execserver.services.confinement.sandbox import REFUSED, SandboxService
from execserver.services.launch.child import Child
from execserver.services.launch.spawner import Spawner, SpawnSpec
from execserver.services.launch.start_request import Watch
from execserver.zygote.confinement import Confinement
from execserver.zygote.supervision.records import Supervision, encode_supervision

if TYPE_CHECKING:
    from execserver.egress.rules_file import NetworkRules
    from execserver.mcp.call_network import CallNetwork
    from execserver.services.egress.service import EgressService

_DEFAULT_LIMIT_MS = 10_000
# What a client without a sandbox asks for: only the network is kept to the rules of the machine.
_UNRESTRICTED = FileSystemSandboxContext(PermissionProfile(DISABLED, True))
_TIMED_OUT = "sandbox error: command timed out"
_KILLED = "sandbox error: command was killed by a signal"

# Returns how the programs that a shell starts are intercepted, NOTIFY or WRAPPER, or why they cannot be.
Interception = Callable[[], int | str]


class ShellOptions(NamedTuple):
    """What all calls of a server share: paths, and the environment the server was started with.

    With `full_path`, rules see the whole path of a program; `wrapper` is the path of the exec wrapper;
    `network_rules` say what commands may reach, None if that is the client's affair alone.
    """

    bash: bytes
    inherited: Mapping[bytes, bytes]
    full_path: bool = False
    wrapper: bytes = b""
    network_rules: NetworkRules | None = None


class ShellCalls:
    """Runs the calls of one server; the caller limits how many run at a time.

    Each call holds up to 4 MiB of output, three descriptors and two of our processes.
    """

    def __init__(
        self,
        spawner: Spawner,
        sandbox: SandboxService,
        policy: Policy,
        options: ShellOptions,
        interception: Interception,
        egress: EgressService | None = None,
    ) -> None:
        """`egress` is what the proxies of all calls share, where there are network rules."""
        self._spawner = spawner
        self._sandbox = sandbox
        self._policy = encode_policy(policy)
        self._options = options
        self._interception = interception
        self._egress = egress
        self._server_cwd = _working_directory()

    def run(self, params: ExecParams, state: SandboxState | None, ask: Ask, cancelled: Event) -> ExecResult:
        """Run a command to its end and return its result.

        `ask` is called for each program that needs the user's approval, each time in its own greenlet.
        Setting `cancelled` ends everything, and so does killing the greenlet.  Raises ToolError.
        """
        try:
            return self._run(params, state or before_any_update(params.workdir), ask, cancelled)
        except ToolError:
            raise
        except RpcError as error:
            raise _error(error.message) from None
        except SandboxNotMade as failed:
            raise _error(f"failed to prepare process sandbox: {failed}") from None

    def _run(self, params: ExecParams, state: SandboxState, ask: Ask, cancelled: Event) -> ExecResult:
        env = shell_environment(self._options.inherited, state)
        try:
            cwd = folder(self._server_cwd, params.workdir)
            argv = shell_argv(self._options.bash, params)
            check_size(argv)
        except OSError as error:
            raise _error(os_error_text(error.errno or 0)) from None
        supervision = self._supervision(env)
        network = self._network(state, ask)
        with nullcontext() if network is None else closing(network):
            spec = SpawnSpec(argv, env, cwd) if network is None else network.lead(SpawnSpec(argv, env, cwd))
            confinement = self._confinement(state, spec)
            limit_ms = _DEFAULT_LIMIT_MS if params.timeout_ms is None else params.timeout_ms
            if not limit_ms:  # 0 leaves no time to run anything
                raise _error(_TIMED_OUT)
            started_ns = time.monotonic_ns()
            timer = CallTimer(limit_ms * 1_000_000, started_ns)
            with _question_socket() as (ours, theirs):
                spec = spec._replace(watch=Watch(supervision, theirs.fileno()))
                child = with_current_plan(
                    confinement,
                    lambda: self._confinement(state, spec),
                    lambda confinement: self._spawner.spawn(spec._replace(confinement=confinement)),
                )
                theirs.close()  # else the end of the supervisor would not show as an end of file
                with closing(RunningCall(child, ours, timer, ask)) as call:
                    if network is not None:
                        network.begin(call.pause, call.resume)
                    outcome = call.wait(cancelled)
                    note = "" if network is None else network.note
                    lasted_ns = time.monotonic_ns() - started_ns
                    return _result(call, child, outcome, lasted_ns, state.is_enforced, note)

    def _network(self, state: SandboxState, ask: Ask) -> CallNetwork | None:
        """Return the network of a call, None where the machine has no rules or the call no network."""
        rules = self._options.network_rules
        if rules is None or self._egress is None or (state.is_enforced and not state.network):
            return None
        from execserver.mcp.call_network import CallNetwork  # late: most servers have no rules

        try:
            return CallNetwork(self._egress, rules.of(""), ask)
        except OSError as error:
            raise _error(os_error_text(error.errno or 0)) from None

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
        """Return how the policy is enforced; None if this server enforces nothing."""
        is_managed = spec.listeners_fd >= 0
        if not state.is_enforced and not is_managed:
            return None
        assert isinstance(spec.env, Mapping)
        context = state.context(self._server_cwd) if state.is_enforced else _UNRESTRICTED
        confinement = self._sandbox.process_start(context, spec.cwd, is_managed, spec.env)
        if confinement.refusal:
            raise _error(f"failed to prepare process sandbox: {confinement.refusal.removeprefix(REFUSED)}")
        return confinement


def _result(
    call: RunningCall, child: Child, outcome: Outcome, duration_ns: int, enforced: bool, note: str
) -> ExecResult:
    """Return the result of a call that is over; raise ToolError with the contract's text if it failed."""
    capture, exit_code = call.capture, child.exit_code
    output = capture.text() + note
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
        return "/"  # the directory was removed


@contextmanager
def _question_socket() -> Iterator[tuple[socket.socket, _socket.socket]]:
    """Make the socket pair for approval prompts, this side's end first; both are closed afterwards."""
    near, far = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    ours = socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, near.detach())
    try:
        yield ours, far
    finally:
        ours.close()
        far.close()


def _error(message: str, data: dict[str, object] | None = None) -> ToolError:
    return ToolError(INTERNAL_ERROR, message, data)
