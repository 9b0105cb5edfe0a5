"""Sessions behind an upgrade: what the new program does not take ends alone."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from execserver.handover.records import PackedNetwork
from execserver.protocol.network import NetworkProxyLaunch
from execserver.services.sessions import handover as session_handover
from tests.support.proxy_settings import proxy_settings


def test_a_proxy_with_more_rules_than_this_program_takes_is_left_out_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    domains = [f"*.h{number}.example" for number in range(1001)]
    launch = msgspec.json.encode({"proxy": proxy_settings(*domains)})
    assert msgspec.json.decode(launch, type=NetworkProxyLaunch).proxy.domains
    process = SimpleNamespace(state=SimpleNamespace(closed=False), network=None, pid=1)
    processes = SimpleNamespace(own=lambda _: process, attachment=None)
    session: Any = SimpleNamespace(
        processes=processes, identity=SimpleNamespace(name="x"), session_id="s", record=None
    )
    shared: Any = SimpleNamespace(network_rules=None, egress=SimpleNamespace(), audit=None)
    packed: Any = SimpleNamespace(process_id="p")
    network = PackedNetwork(launch, is_on_host=True, http_port=1, socks_port=None, sockets=[])
    with caplog.at_level(logging.ERROR):
        session_handover._serve_network(session, packed, network, shared, SimpleNamespace())  # type: ignore[arg-type]
    assert process.network is None
    assert (
        "process p goes on without its network proxy: more than 1000 domains with a wildcard" in caplog.text
    )
