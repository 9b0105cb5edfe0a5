"""Connections end when the tokens of their holders do."""

from __future__ import annotations

import gevent
import pytest

from execserver.access.identity import Grant
from execserver.access.tokens.holder import Holder
from execserver.transports.lapsing import LapseSweep
from tests.support.waiting import wait_until

POLICY_VIOLATION = 1008


class Ended:
    """A connection that remembers how it was closed."""

    def __init__(self) -> None:
        self.closed: list[tuple[int, str]] = []

    def close(self, code: int, reason: str) -> None:
        self.closed.append((code, reason))


def test_a_connection_ends_with_its_token_and_no_other_does() -> None:
    reasons: dict[str, str | None] = {"a": None, "b": None}
    connections = {name: Ended() for name in reasons}
    sweep = LapseSweep()
    for name, connection in connections.items():
        sweep.watch(connection, Holder(name, Grant(), lambda _, name=name: reasons[name]))  # type: ignore[misc]
    sweep.sweep()
    assert [connection.closed for connection in connections.values()] == [[], []]
    reasons["a"] = "expired execserver token"
    sweep.sweep()
    sweep.sweep()
    assert connections["a"].closed == [(POLICY_VIOLATION, "expired execserver token")]
    assert connections["b"].closed == []
    sweep.forget(connections["b"])


def test_the_time_is_asked_for_once_a_sweep() -> None:
    times: list[float] = []
    sweep, connection = LapseSweep(), Ended()
    sweep.watch(connection, Holder("a", Grant(), lambda now: times.append(now)))
    sweep.sweep()
    assert len(times) == 1
    sweep.forget(connection)
    sweep.sweep()
    assert len(times) == 1


def test_it_looks_by_itself_also_after_it_had_nothing_to_do() -> None:
    sweep, connection = LapseSweep(), Ended()
    for _ in range(2):
        sweep.watch(connection, Holder("a", Grant(), lambda _: "expired execserver token"))
        wait_until(lambda: connection.closed, pause=gevent.sleep)
        connection.closed.clear()


def test_an_identity_does_not_change() -> None:
    holder = Holder("a", Grant(), lambda _: None)
    with pytest.raises(AttributeError):
        holder.name = "b"  # type: ignore[misc]
    assert (holder.way, holder.name, holder.grant) == ("token", "a", Grant())
