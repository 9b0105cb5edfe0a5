"""From the settings in `process/start` to a policy, and from decisions to notifications (contract, 8.9)."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from execserver.egress.config import NOT_ENABLED, check_unix_sockets, domain_rules
from execserver.egress.decisions import DecisionRecord, Mode
from execserver.egress.machine_rules import MachineRules
from execserver.egress.patterns import ConfigError
from execserver.egress.policy import EgressPolicy
from execserver.protocol.envelope import encode_notification
from execserver.protocol.methods import NETWORK_POLICY_DECISION
from execserver.protocol.network import (
    DomainPermission,
    NetworkPolicyDecisionNotification,
    NetworkProxyConfig,
    UnixSocketPermission,
)
from execserver.services.attachment import Attachment


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


def teller(
    process_id: str, attachment: Attachment | None, decided: Callable[[str, DecisionRecord], None]
) -> Callable[[DecisionRecord], None]:
    """Return what tells the server of each decision, and the client, if it wants to know.

    It waits while the client does not read.
    """

    def tell(record: DecisionRecord) -> None:
        decided(process_id, record)
        if attachment is None:
            return
        params = _notification(process_id, record)
        attachment.send(encode_notification(NETWORK_POLICY_DECISION.name, params))
        attachment.wait_for_room()

    return tell


def _notification(process_id: str, record: DecisionRecord) -> NetworkPolicyDecisionNotification:
    verdict, question = record.verdict, record.question
    return NetworkPolicyDecisionNotification(
        process_id=process_id,
        timestamp=_timestamp(time.time()),
        scope=verdict.scope.value,
        decision=verdict.action.value,
        source=verdict.source.value,
        reason=verdict.reason,
        protocol=question.protocol.value,
        host=question.host,
        port=question.port,
        method=msgspec.UNSET if record.method is None else record.method,
        client=record.client,
        policy_override=verdict.override,
    )


def _timestamp(now: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
