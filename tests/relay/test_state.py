"""What a relay remembers, in memory, in a file, and in an engine: the same rules for all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.relay.engine.state import EngineState
from execserver.relay.limits import Limits
from execserver.relay.metrics import Metrics
from execserver.relay.registry import ApiError, Found, Registry, Whereabouts
from execserver.relay.sqlite_state import SqliteState, StateFileError
from execserver.relay.state import Grant, MemoryState, Outcome, Registration, RelayState
from execserver.relay.tokens import BOTH, Token, digest_of
from tests.support.engine_process import EngineProcess, find_engine
from tests.support.relay_process import key_object


@pytest.fixture(scope="module", autouse=True)  # before a test's descriptors are counted
def engine_process() -> Iterator[EngineProcess | None]:
    if find_engine() is None:
        yield None
        return
    with EngineProcess() as running:
        yield running


@pytest.fixture(params=["memory", "file", "engine"])
def state(
    request: pytest.FixtureRequest, tmp_path: Path, engine_process: EngineProcess | None
) -> Iterator[RelayState]:
    if request.param == "engine":
        process = engine_process or EngineProcess()  # which leaves the test out
        process.ask("FLUSHALL")
        engine = process.connected()
        yield EngineState(engine)
        engine.close()
        return
    made: RelayState = MemoryState() if request.param == "memory" else SqliteState(str(tmp_path / "state.db"))
    yield made
    made.close()


def registration(name: str, key: str, number: int = 0) -> Registration:
    return Registration(name, f"reg_{number}", key, digest_of(key), digest_of(f"t{number}"), "token-id", 1.5)


def grant(number: int, name: str = "box", expires: float = 100.0) -> Grant:
    ticket, authorization = digest_of(f"ticket{number}"), digest_of(f"authorization{number}")
    return Grant(name, "reg_0", digest_of("harness"), ticket, authorization, "token-id", expires)


def test_registrations_and_takeover(state: RelayState) -> None:
    assert state.registration("box") is None
    assert state.register(registration("box", "a"), 10) is Outcome.FIRST
    assert state.register(registration("box", "a", 1), 10) is Outcome.AGAIN
    assert state.registration("box") == registration("box", "a", 1)
    assert state.register(registration("box", "b", 2), 10) is Outcome.TAKEN_OVER
    assert state.register(registration("box", "a", 3), 10) is Outcome.SUPERSEDED
    assert state.registration("box") == registration("box", "b", 2)
    assert state.register(registration("other", "a"), 10) is Outcome.FIRST


def test_superseded_keys_are_bounded(state: RelayState) -> None:
    for key in ("a", "b", "c", "d"):
        state.register(registration("box", key), 2)
    outcomes = [state.register(registration("box", key), 2) for key in ("c", "b")]
    assert outcomes == [Outcome.SUPERSEDED, Outcome.SUPERSEDED]
    assert state.register(registration("box", "a"), 2) is Outcome.TAKEN_OVER


def test_grants_are_found_by_their_ticket_until_they_expire(state: RelayState) -> None:
    state.add_grant(grant(1), 10, 0.0)
    assert state.grant_for_ticket("box", digest_of("ticket1"), 99.9).grant == grant(1)
    assert state.grant_for_ticket("box", digest_of("ticket1"), 100.0).grant is None
    assert state.grant_for_ticket("box", digest_of("ticket2"), 0.0).grant is None


def test_an_authorization_is_good_once_and_in_time(state: RelayState) -> None:
    state.add_grant(grant(1), 10, 0.0)
    state.add_grant(grant(2), 10, 0.0)
    assert state.take_authorization("box", digest_of("authorization1"), 50.0).grant == grant(1)
    assert state.take_authorization("box", digest_of("authorization1"), 50.0).grant is None
    assert state.take_authorization("box", digest_of("authorization2"), 100.0).grant is None
    assert state.take_authorization("box", digest_of("authorization2"), 50.0).grant is None
    found = state.grant_for_ticket("box", digest_of("ticket1"), 50.0).grant
    assert found is not None
    assert found.fingerprint == digest_of("harness")


def test_grants_are_bounded_for_each_environment(state: RelayState) -> None:
    state.add_grant(grant(9, "other"), 2, 0.0)
    for number in (1, 2, 3):
        state.add_grant(grant(number), 2, 0.0)
    tickets = [("box", 1), ("box", 2), ("box", 3), ("other", 9)]
    left = [
        number
        for name, number in tickets
        if state.grant_for_ticket(name, digest_of(f"ticket{number}"), 0.0).grant is not None
    ]
    assert left == [2, 3, 9]
    used = [
        state.take_authorization("box", digest_of(f"authorization{number}"), 0.0).grant for number in (1, 2)
    ]
    assert used == [None, grant(2)]


def test_a_grant_is_nothing_in_another_environment(state: RelayState) -> None:
    state.add_grant(grant(1), 10, 0.0)
    assert state.grant_for_ticket("other", digest_of("ticket1"), 1.0).grant is None
    assert state.take_authorization("other", digest_of("authorization1"), 1.0).grant is None
    assert state.take_authorization("box", digest_of("authorization1"), 1.0).grant == grant(1)


@pytest.mark.parametrize("state", ["memory", "file"], indirect=True)  # an engine forgets by its own clock
def test_expired_grants_are_forgotten(state: RelayState) -> None:
    state.add_grant(grant(1, expires=10.0), 10, 0.0)
    state.add_grant(grant(2, expires=20.0), 10, 0.0)
    state.expire(15.0)
    assert state.grant_for_ticket("box", digest_of("ticket1"), 5.0).grant is None
    assert state.grant_for_ticket("box", digest_of("ticket2"), 5.0).grant == grant(2, expires=20.0)


def test_a_file_outlives_the_process(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")
    first = SqliteState(path)
    first.register(registration("box", "a"), 10)
    first.register(registration("box", "b"), 10)
    first.add_grant(grant(1), 10, 0.0)
    first.close()
    second = SqliteState(path)
    assert second.registration("box") == registration("box", "b")
    assert second.register(registration("box", "a"), 10) is Outcome.SUPERSEDED
    assert second.take_authorization("box", digest_of("authorization1"), 1.0).grant is not None
    second.close()


class Here:
    """A presence: the executor is always connected."""

    def __init__(self, state: RelayState) -> None:
        self._state = state

    def find_executor(self, environment_id: str, seconds: float) -> Found:
        return Found(self._state.registration(environment_id), Whereabouts())

    revoked: frozenset[str] = frozenset()

    def knows_token(self, token_id: str) -> bool:
        return token_id not in self.revoked

    def registered(self, registration: Registration, outcome: Outcome) -> None:
        pass


def test_an_authorization_expires_by_the_clock_that_is_passed_in(state: RelayState) -> None:
    clock = [1000.0]
    registry = Registry(state, Here(state), Limits(grant_ttl_s=60), Metrics(), lambda: clock[0])
    token = Token("id", "box", BOTH, bytes(32), "")
    body: dict[str, object] = {
        "security_profile": "noise_hybrid_ik_v1",
        "executor_public_key": key_object(1),
    }
    registry.register("box", token, body, "ws://x")

    def is_valid_after(seconds: float) -> bool:
        granted = registry.connect("box", token, {"harness_public_key": key_object(2)}, "ws://x")
        clock[0] += seconds
        question: dict[str, object] = {
            "harness_public_key": key_object(2),
            "executor_registration_id": granted["executor_registration_id"],
            "harness_key_authorization": granted["harness_key_authorization"],
        }
        return registry.validate("box", token, question)["valid"] is True

    assert [is_valid_after(59.9), is_valid_after(60.0)] == [True, False]


def test_a_harness_whose_token_was_revoked_meanwhile_is_answered_401(state: RelayState) -> None:
    here = Here(state)
    registry = Registry(state, here, Limits(), Metrics(), lambda: 1000.0)
    executor, harness = (Token(name, "box", BOTH, bytes(32), "") for name in ("executor", "harness"))
    body: dict[str, object] = {
        "security_profile": "noise_hybrid_ik_v1",
        "executor_public_key": key_object(1),
    }
    registry.register("box", executor, body, "ws://x")
    granted = registry.connect("box", harness, {"harness_public_key": key_object(2)}, "ws://x")
    here.revoked = frozenset({"harness"})
    question: dict[str, object] = {
        "harness_public_key": key_object(2),
        "executor_registration_id": granted["executor_registration_id"],
        "harness_key_authorization": granted["harness_key_authorization"],
    }
    with pytest.raises(ApiError) as refused:
        registry.validate("box", executor, question)
    assert refused.value.status == 401
    assert registry.validate("box", executor, question) == {"valid": False}  # it is used up


def test_the_rate_of_calls_recovers_with_the_clock() -> None:
    clock = [0.0]
    state = MemoryState()
    registry = Registry(state, Here(state), Limits(calls_per_s=1), Metrics(), lambda: clock[0])
    token = Token("id", "box", BOTH, bytes(32), "")

    def statuses(count: int) -> list[int]:
        found = []
        for _ in range(count):
            try:
                registry.validate("box", token, {})
            except ApiError as error:
                found.append(error.status)
        return found

    assert statuses(6) == [400] * 4 + [429] * 2
    clock[0] = 2.0
    assert statuses(3) == [400, 400, 429]


def test_a_file_that_cannot_be_written_is_told_and_changes_nothing(tmp_path: Path) -> None:
    state = SqliteState(str(tmp_path / "state.db"))
    state.register(registration("box", "a"), 10)
    state._db.execute("PRAGMA query_only=1")
    with pytest.raises(StateFileError, match="readonly"):
        state.register(registration("box", "b"), 10)
    state._db.execute("PRAGMA query_only=0")
    assert state.registration("box") == registration("box", "a")
    assert state.register(registration("box", "b"), 10) is Outcome.TAKEN_OVER
    state.close()
