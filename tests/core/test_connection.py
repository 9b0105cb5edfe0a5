"""The life cycle of a connection."""

from __future__ import annotations

import pytest

from execserver.core.connection import ConnectionPhase, ConnectionRules, ProtocolViolation
from execserver.protocol.errors import InvalidRequest


def greeted() -> ConnectionRules:
    rules = ConnectionRules()
    rules.check_initialize()
    rules.initialize_succeeded()
    return rules


def test_a_fresh_connection_refuses_requests_with_the_name_of_the_family() -> None:
    with pytest.raises(InvalidRequest, match=r"^client must call initialize before using exec methods$"):
        ConnectionRules().check_request("exec")


def test_between_initialize_and_initialized_requests_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"must send initialized before using filesystem methods$"):
        greeted().check_request("filesystem")


def test_after_initialized_requests_pass_and_it_may_be_repeated() -> None:
    rules = greeted()
    rules.notification("initialized")
    rules.notification("initialized")
    rules.check_request("http")
    assert rules.phase is ConnectionPhase.READY


def test_a_second_initialize_is_refused_before_and_after_initialized() -> None:
    rules = greeted()
    with pytest.raises(InvalidRequest, match=r"^initialize may only be sent once per connection$"):
        rules.check_initialize()
    rules.notification("initialized")
    with pytest.raises(InvalidRequest):
        rules.check_initialize()


def test_a_failed_initialize_leaves_the_connection_fresh() -> None:
    rules = ConnectionRules()
    rules.check_initialize()
    rules.check_initialize()
    assert rules.phase is ConnectionPhase.FRESH


def test_initialized_before_initialize_ends_the_connection() -> None:
    with pytest.raises(ProtocolViolation, match="before `initialize`"):
        ConnectionRules().notification("initialized")


def test_a_request_sent_as_a_notification_ends_the_connection_and_is_named() -> None:
    with pytest.raises(ProtocolViolation, match="unexpected notification `process/start`"):
        greeted().notification("process/start")
