"""From the settings in `process/start` to a policy, and from decisions to notifications (contract, 8.9)."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from execserver.egress.config import NOT_ENABLED, check_unix_sockets, domain_rules
from execserver.egress.decisions import DecisionRecord, Mode
from execserver.egress.machine_rules import MachineRules
from execserver.egress.patterns import ConfigError
from execserver.egress.policy import EgressPolicy
from execserver.egress.remembering import remember
from execserver.protocol.envelope import encode_notification
from execserver.protocol.methods import NETWORK_POLICY_DECISION
from execserver.protocol.network import (
    DomainPermission,
    NetworkPolicyDecisionNotification,
    NetworkProxyConfig,
    NetworkProxyLaunch,
    UnixSocketPermission,
)
from execserver.protocol.record import encode_record
from execserver.services.clients.attachment import Attachment
from execserver.services.egress.asking import asker
from execserver.services.egress.proxy import EgressProxy
from execserver.services.reporting.observers import Who

if TYPE_CHECKING:
    from execserver.handover.carrier import Incoming
    from execserver.handover.records import PackedNetwork
    from execserver.services.egress.service import EgressService
    from execserver.services.reporting.audit import AuditTrail

_METHOD_CHARACTERS = 32  # a process may choose longer ones, which are not remembered
_NO_TIME, _NO_CLIENT = b'"timestamp":""', b'"client":""'


def policy_of(config: NetworkProxyConfig, machine: MachineRules | None = None) -> EgressPolicy:
    """Return the policy of a process, with the rules of the machine over it.  Raises ConfigError."""
    if not config.enabled:
        raise ConfigError(NOT_ENABLED)
    domains = config.domains or {}
    rules = domain_rules(
        [text for text, permission in domains.items() if permission is DomainPermission.ALLOW],
        [text for text, permission in domains.items() if permission is DomainPermission.DENY],
        config.review_domains,
    )
    sockets = config.unix_sockets or {}
    check_unix_sockets({path: sockets[path] is UnixSocketPermission.ALLOW for path in sockets})
    return EgressPolicy(
        (rules,),
        mode=Mode(config.mode.value),
        socks=config.enable_socks5,
        socks_udp=config.enable_socks5_udp,
        allow_local_binding=config.allow_local_binding,
        upstream=config.allow_upstream_proxy,
        machine=machine,
    )


class Place(NamedTuple):
    """Whose proxy it is: the process, where its client is told, and for whom it runs."""

    process_id: str
    attachment: Attachment
    who: Who


def proxy_of(
    launch: NetworkProxyLaunch | None,
    machine: MachineRules | None,
    place: Place,
    service: EgressService,
    log: AuditTrail | None,
) -> EgressProxy:
    """Return the proxy of a process, which listens on nothing yet; `log` is told of decisions, too.

    `launch` is None where only the machine has rules.  Raises ConfigError.
    """
    if machine is not None and (launch is None or launch.policy_decision_timeout_ms is None):
        machine = machine.unasked()
    policy = EgressPolicy((), machine=machine) if launch is None else policy_of(launch.proxy, machine)
    # A client that asked for no proxy knows no notification about one.
    client = None if launch is None else place.attachment
    tell = teller(place.process_id, client, _watched(place, service, log))
    timeout_ms, ask = None if launch is None else launch.policy_decision_timeout_ms, None
    if timeout_ms is not None:
        grace_s = service.settings.policy_answer_grace_s
        ask = asker(place.process_id, place.attachment, timeout_ms, grace_s)
    proxy = EgressProxy(policy, service, tell, ask)
    proxy.launch = b"" if launch is None else encode_record(launch)
    return proxy


def handed_over(
    packed: PackedNetwork,
    machine: MachineRules | None,
    place: Place,
    service: EgressService,
    log: AuditTrail | None,
) -> EgressProxy | None:
    """Return what `proxy_of` made in a server before this one; None where no rules are left for it."""
    launch = msgspec.json.decode(packed.launch, type=NetworkProxyLaunch) if packed.launch else None
    return None if launch is None and machine is None else proxy_of(launch, machine, place, service, log)


def take_over_masking(
    proxy: EgressProxy, packed: PackedNetwork, service: EgressService, incoming: Incoming
) -> None:
    """Have a proxy that was handed over go on with the credentials of its process."""
    if packed.masked:
        from execserver.services.egress.masked import unpacked

        launch = msgspec.json.decode(packed.launch, type=NetworkProxyLaunch)
        proxy.masked = unpacked(packed.masked, launch.proxy, service, incoming)


def _watched(
    place: Place, service: EgressService, log: AuditTrail | None
) -> Callable[[str, DecisionRecord], None]:
    """Return what tells the server of each decision, and its audit log, where it writes one."""
    if log is None:
        return service.decided
    from execserver.services.egress.trail import NetworkTrail
    from execserver.services.reporting.audit import whom  # late: few servers write a log

    trail = NetworkTrail(log, place.process_id, whom(place.who))

    def decided(process_id: str, record: DecisionRecord) -> None:
        service.decided(process_id, record)
        trail.decided(record)

    return decided


def teller(
    process_id: str, attachment: Attachment | None, decided: Callable[[str, DecisionRecord], None]
) -> Callable[[DecisionRecord], None]:
    """Return what tells the server of each decision, and the client, if it wants to know.

    It waits while the client does not read.
    """
    known: dict[object, tuple[bytes, bytes, bytes]] = {}  # what is around time and client in a message

    def tell(record: DecisionRecord) -> None:
        decided(process_id, record)
        if attachment is None:
            return
        key = record.verdict, record.question.key, record.method
        around = known.get(key)
        if around is None:
            around = _around(process_id, record)
            if record.method is None or len(record.method) <= _METHOD_CHARACTERS:
                remember(known, key, around)
        before, between, behind = around
        attachment.send(before, _timestamp(time.time()), between, record.client.encode(), behind)
        attachment.wait_for_room()

    return tell


def _around(process_id: str, record: DecisionRecord) -> tuple[bytes, bytes, bytes]:
    """Return a notification without its time and client, which need no escapes in JSON."""
    text = encode_notification(NETWORK_POLICY_DECISION.name, _notification(process_id, record))
    # Only a member's name is followed by a colon, and no quote stands in a value without a backslash.
    before, _, rest = text.partition(_NO_TIME)
    between, _, behind = rest.partition(_NO_CLIENT)
    return before + _NO_TIME[:-1], b'"' + between + _NO_CLIENT[:-1], b'"' + behind


def _notification(process_id: str, record: DecisionRecord) -> NetworkPolicyDecisionNotification:
    verdict, question = record.verdict, record.question
    return NetworkPolicyDecisionNotification(
        process_id=process_id,
        timestamp="",
        scope=verdict.scope,
        decision=verdict.action,
        source=verdict.source,
        reason=verdict.reason,
        protocol=question.protocol,
        host=question.host,
        port=question.port,
        method=msgspec.UNSET if record.method is None else record.method,
        client="",
        policy_override=verdict.override,
    )


def _timestamp(now: float) -> bytes:
    return b"%b.%03dZ" % (_second(int(now)), int(now * 1000) % 1000)


@lru_cache(maxsize=1)
def _second(second: int) -> bytes:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
