"""Starting a process with a network proxy of its own (wire contract, section 8.9)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from execserver.egress.patterns import ConfigError
from execserver.handlers.context import Call
from execserver.handlers.limits import limits
from execserver.handlers.replies import Later, Reply, Result
from execserver.protocol.errors import InternalError, InvalidParams, InvalidRequest, os_error_text
from execserver.protocol.network import NetworkProxyLaunch
from execserver.protocol.process import ExecParams
from execserver.services.egress.asking import asker
from execserver.services.egress.launch import policy_of, teller
from execserver.services.egress.proxy import EgressProxy

Start = Callable[[ExecParams], Reply | Later]


def start_with_proxy(
    call: Call, params: ExecParams, launch: NetworkProxyLaunch, start: Start
) -> Reply | Later:
    """Start a process whose environment leads to a proxy; the proxy ends when the process is closed."""
    held = _Held(_proxy(call, params.process_id, launch))
    variables = {name.decode(): value.decode() for name, value in held.proxy.environment.items()}
    answer = start(msgspec.structs.replace(params, env=params.env | variables))
    if isinstance(answer, Reply):
        _hand_over(call, params.process_id, held)
        return answer
    run = answer.run

    def run_and_hand_over() -> Result | Reply:
        result = run()
        _hand_over(call, params.process_id, held)
        return result

    return Later(run_and_hand_over)


class _Held:
    """A proxy that belongs to no process yet, and is closed if it never does."""

    __slots__ = ("is_given", "proxy")

    def __init__(self, proxy: EgressProxy) -> None:
        self.proxy = proxy
        self.is_given = False

    def __del__(self) -> None:
        # Also for a start that was abandoned before it ran: its greenlet has no `finally`.
        if not self.is_given:
            self.proxy.close()


def _proxy(call: Call, process_id: str, launch: NetworkProxyLaunch) -> EgressProxy:
    timeout_ms = launch.policy_decision_timeout_ms
    if timeout_ms == 0:
        raise InvalidParams("network policy decision callback timeout must be nonzero")
    try:
        policy = policy_of(launch.proxy)
    except ConfigError as error:
        raise InvalidParams(f"invalid network proxy config: {error}") from None
    taken = limits(call)
    if taken is not None and not taken.network:
        raise InvalidRequest("networkProxy needs the network, which is not granted to this client")
    service, attachment = call.services.egress, call.session.processes.attachment
    tell = teller(process_id, attachment, service.decided)
    ask = None
    if timeout_ms is not None:
        ask = asker(process_id, attachment, timeout_ms, service.settings.policy_answer_grace_s)
    proxy = EgressProxy(policy, service, tell, ask)
    try:
        proxy.listen()
    except OSError as error:
        raise InternalError(f"no network proxy can be made: {os_error_text(error.errno or 0)}") from None
    return proxy


def _hand_over(call: Call, process_id: str, held: _Held) -> None:
    """Let the proxy of a process that runs serve it; without one it ends here."""
    process = call.session.processes.own(process_id)
    if process is None or process.state.closed:
        return  # its session ended while it was starting
    held.is_given = True
    process.network = held.proxy
    held.proxy.leader = process.pid
    held.proxy.start()
