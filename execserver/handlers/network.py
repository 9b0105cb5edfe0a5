"""Starting a process with a network proxy of its own (wire contract, section 8.9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from execserver.egress.machine_rules import MachineRules
from execserver.egress.patterns import ConfigError
from execserver.handlers.context import Call
from execserver.handlers.limits import UNRESTRICTED, limits
from execserver.handlers.replies import Later, Reply, Result
from execserver.protocol.errors import InternalError, InvalidParams, InvalidRequest, os_error_text
from execserver.protocol.process import ExecParams
from execserver.sandbox.backends.probe_egress import check_masking
from execserver.sandbox.proxy.routes import HTTP_PORT, SOCKS_PORT
from execserver.services.egress.launch import Place, proxy_of
from execserver.services.egress.proxy import EgressProxy
from execserver.services.launch.passed_listeners import PassedListeners
from execserver.services.launch.spawner import SpawnSpec
from execserver.services.reporting.observers import Who

if TYPE_CHECKING:
    from execserver.egress.masking import Masking
    from execserver.protocol.network import NetworkProxyConfig
    from execserver.services.egress.masked import Masked
    from execserver.services.egress.service import EgressService

# Starts the process of the params, with stand-ins for its credentials where it has masking; through the
# descriptor its sandbox passes what listens for the proxy.
Start = Callable[[ExecParams, int, "Masking | None"], Reply | Later]


def start_with_proxy(call: Call, params: ExecParams, start: Start) -> Reply | Later:
    """Start a process whose environment leads to a proxy; the proxy ends when the process is closed.

    Where the machine has rules of its own, each process that may use the network gets one in which only the
    proxy is reachable, whatever the client asked for.
    """
    if call.services.survives_crash:
        raise InvalidParams("a network proxy does not survive a crash, so --survive-crash has none")
    rules = call.services.network_rules
    machine = None if rules is None else rules.of(call.connection.identity.label)
    if machine is not None:
        params = _kept_in(call, params)
        if params.network_proxy is None and not params.enforce_managed_network:
            return start(params, -1, None)  # it has no network
    is_managed = params.sandbox is not None and params.enforce_managed_network
    held = _Held(*_proxy(call, params, machine, is_managed))
    variables = {name.decode(): value.decode() for name, value in held.proxy.environment.items()}
    passed = held.passed
    masked = held.proxy.masked
    answer = start(
        msgspec.structs.replace(params, env=params.env | variables),
        -1 if passed is None else passed.fd,
        None if masked is None else masked.masking,
    )
    if isinstance(answer, Reply):
        _hand_over(call, params.process_id, held)
        return answer
    run = answer.run

    def run_and_hand_over() -> Result | Reply:
        result = run()
        _hand_over(call, params.process_id, held)
        return result

    return Later(run_and_hand_over)


def _kept_in(call: Call, params: ExecParams) -> ExecParams:
    """Return params whose process has no network but the proxy, or none at all."""
    taken = limits(call)
    sandbox = params.sandbox or UNRESTRICTED
    has_network = sandbox.permissions.network_enabled or params.enforce_managed_network
    is_managed = has_network and (taken is None or taken.network)
    return msgspec.structs.replace(params, sandbox=sandbox, enforce_managed_network=is_managed)


class _Held:
    """A proxy that belongs to no process yet, and is closed if it never does."""

    __slots__ = ("is_given", "passed", "proxy")

    def __init__(self, proxy: EgressProxy, passed: PassedListeners | None) -> None:
        self.proxy = proxy
        self.passed = passed
        self.is_given = False

    def __del__(self) -> None:
        # Also for a start that was abandoned before it ran: its greenlet has no `finally`.
        if not self.is_given:
            self.proxy.close()
        if self.passed is not None:
            self.passed.close()


def _proxy(
    call: Call, params: ExecParams, machine: MachineRules | None, is_managed: bool
) -> tuple[EgressProxy, PassedListeners | None]:
    """Make the proxy of a process, and what brings its sockets from a sandbox's network, if it has one."""
    launch, process_id = params.network_proxy, params.process_id
    timeout_ms = None if launch is None else launch.policy_decision_timeout_ms
    if timeout_ms == 0:
        raise InvalidParams("network policy decision callback timeout must be nonzero")
    who = Who(call.session.session_id, call.connection.identity)
    place = Place(process_id, call.session.processes.attachment, who)
    try:
        proxy = proxy_of(launch, machine, place, call.services.egress, call.services.audit)
    except ConfigError as error:
        raise InvalidParams(f"invalid network proxy config: {error}") from None
    taken = limits(call)
    if taken is not None and not taken.network:
        raise InvalidRequest("networkProxy needs the network, which is not granted to this client")
    try:
        if launch is not None and launch.proxy.credential_masking:
            proxy.masked = _masked(launch.proxy, call.services.egress)
        if is_managed:
            proxy.expect(HTTP_PORT, SOCKS_PORT)
            return proxy, PassedListeners()
        proxy.listen()
    except OSError as error:
        proxy.close()
        raise InternalError(f"no network proxy can be made: {os_error_text(error.errno or 0)}") from None
    return proxy, None


def _masked(config: NetworkProxyConfig, service: EgressService) -> Masked:
    """Return the masking of a process.  Raises InvalidParams, and InternalError: it never starts without."""
    from execserver.sandbox.certificate_folder import FolderRefused
    from execserver.services.egress.masked import masked_of

    # Looked at again: the machine, and the folder, may have changed since it was announced.
    found = check_masking(service.environ)
    if not found.works:
        raise InternalError(f"credentials cannot be masked: {found.blocker}")
    try:
        return masked_of(config, service)
    except ConfigError as error:
        raise InvalidParams(f"invalid network proxy config: {error}") from None
    except FolderRefused as refused:
        raise InternalError(f"credentials cannot be masked: {refused}") from None
    except OSError as error:
        text = os_error_text(error.errno or 0)
        raise InternalError(f"credentials cannot be masked, no certificate can be written: {text}") from None


def masked(spec: SpawnSpec, masking: Masking) -> SpawnSpec:
    """Have a process see stand-ins for its credentials, in its environment and in its words.

    Raises InvalidParams rather than have it see real ones that would take long to mask.
    """
    from execserver.egress.value_patterns import TooMuch

    try:
        env = masking.masked(dict(spec.env))
    except TooMuch:
        text = "invalid network proxy config: the credentials and their patterns take too long to mask"
        raise InvalidParams(text) from None
    arg0 = None if spec.arg0 is None else masking.hidden(spec.arg0)
    return spec._replace(env=env, argv=masking.all_hidden(spec.argv), arg0=arg0)


def _hand_over(call: Call, process_id: str, held: _Held) -> None:
    """Let the proxy of a process that runs serve it; without one it ends here."""
    process = call.session.processes.own(process_id)
    if process is None or process.state.closed:
        return  # its session ended while it was starting
    if held.passed is not None:
        listeners = held.passed.take()
        http = listeners.pop(HTTP_PORT, None)
        if http is None:
            return  # no sandbox could be made: what runs only prints why
        held.proxy.listen_on(http, listeners.get(SOCKS_PORT))
    held.is_given = True
    if held.proxy.masked is not None:
        held.proxy.masked.told()
    process.network = held.proxy
    held.proxy.leader = process.pid
    held.proxy.start()
