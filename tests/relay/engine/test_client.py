"""The engine's client: one pipeline for all, bounds on what an engine may do to those who wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import gevent
import pytest

from execserver.relay.engine import client, connection
from execserver.relay.engine.address import Credentials, EngineAddress
from execserver.relay.engine.client import Engine, EngineRefused, Script
from execserver.relay.engine.line import Dialer, SignInRefused
from execserver.relay.engine.resp import Reply
from execserver.relay.errors import EngineSilent
from tests.relay.engine.scripted import ScriptedEngine, until
from tests.support.engine_process import EngineProcess, free_port

SOON_S = 20.0


@pytest.fixture
def engine(process: EngineProcess) -> Iterator[Engine]:
    process.ask("FLUSHALL")
    made = process.connected()
    yield made
    made.close()


@contextmanager
def scripted(answer: Callable[[Reply], bytes]) -> Iterator[Engine]:
    server = ScriptedEngine(answer)
    engine = Engine(server.dialer(), (), lambda result: None)
    engine.start()
    try:
        yield engine
    finally:
        engine.close()
        server.close()
        gevent.sleep(0.01)


def silence_after(seconds: float, engine: Engine) -> str:
    """Call, and return why there was no answer; it must come within some seconds."""
    begun = time.monotonic()
    with pytest.raises(EngineSilent) as silent:
        engine.call(("GET", "x"))
    assert time.monotonic() - begun < seconds
    return str(silent.value)


def test_calls_of_many_greenlets_get_their_own_replies(engine: Engine) -> None:
    def one(number: int) -> list[Reply]:
        return engine.call(("SET", f"k{number}", number), ("GET", f"k{number}"))

    jobs = [gevent.spawn(one, number) for number in range(300)]
    gevent.joinall(jobs, raise_error=True)
    assert [job.value for job in jobs] == [[b"OK", str(number).encode()] for number in range(300)]


def test_an_error_is_told_and_changes_nothing_for_others(engine: Engine, process: EngineProcess) -> None:
    process.ask("SET", "text", "x")
    with pytest.raises(EngineRefused, match="WRONGTYPE"):
        engine.call(("HGET", "text", "field"))
    assert engine.call(("GET", "text")) == [b"x"]


def test_scripts_that_were_flushed_are_loaded_again(process: EngineProcess) -> None:
    script = Script("return {KEYS[1], ARGV[1]}")
    engine = Engine(process.dialer(), (script,), lambda result: None)
    engine.start()
    process.ask("SCRIPT", "FLUSH")
    replies = engine.call(("INCR", "counter"), script.on(("key",), "word"))
    assert replies == [1, [b"key", b"word"]]
    engine.close()


def test_an_engine_that_hangs_is_given_up_and_nobody_waits_longer(
    process: EngineProcess, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ANSWER_S", 0.3)
    process.pause()
    try:
        waiting = [gevent.spawn(silence_after, SOON_S, engine) for _ in range(20)]
        gevent.joinall(waiting, raise_error=True)
        assert {job.value for job in waiting} == {"the engine did not answer within 0.3 s"}
        assert "did not answer" not in silence_after(SOON_S, engine)  # there is no connection: at once
    finally:
        process.go_on()
        monkeypatch.undo()
    until(lambda: engine.is_connected)
    assert engine.call(("PING",)) == [b"PONG"]


def test_an_engine_that_stops_in_the_middle_of_a_reply_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_S", 0.3)
    with scripted(lambda command: b"$100\r\nhalf") as engine:
        assert "did not answer" in silence_after(SOON_S, engine)


@pytest.mark.parametrize(
    "reply", [b"$999999999\r\n", b"*99999\r\n", b"HTTP/1.1 400 Bad Request\r\n", b"+A\r\n+B\r\n"]
)
def test_an_engine_that_says_too_much_or_nonsense_is_given_up(reply: bytes) -> None:
    with scripted(lambda command: reply) as engine:
        if reply.startswith(b"+A"):  # the answer, and one that nobody asked for
            assert engine.call(("GET", "x")) == [b"A"]
        silence_after(SOON_S, engine)


def test_an_engine_that_is_no_primary_any_more_is_given_up() -> None:
    with scripted(lambda command: b"-READONLY You can't write against a read only replica.\r\n") as engine:
        assert "READONLY" in silence_after(SOON_S, engine)
        assert not engine.is_connected


def test_more_calls_than_may_wait_are_refused_at_once(
    process: EngineProcess, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_CALLS", 3)
    process.pause()
    try:
        waiting = [gevent.spawn(engine.call, ("PING",)) for _ in range(3)]
        gevent.sleep(0)
        assert engine.waiting == 3
        assert silence_after(SOON_S, engine) == "too many calls wait for the engine"
    finally:
        process.go_on()
    gevent.joinall(waiting, raise_error=True)


def test_a_lost_connection_is_made_again_and_told() -> None:
    came = []
    with EngineProcess() as first:
        port = first.port
        engine = Engine(first.dialer(), (), lambda result: None)
        engine.on_connected = lambda: came.append(True)
        engine.start()
        assert came == []
    until(lambda: not engine.is_connected)
    silence_after(SOON_S, engine)
    with EngineProcess(port=port):
        until(lambda: bool(came))
        assert engine.call(("PING",)) == [b"PONG"]
        engine.close()


def test_credentials_are_shown_and_wrong_ones_told() -> None:
    with EngineProcess("--requirepass", "secret-1") as process:
        for credentials, told in (
            (Credentials(), "wants other credentials"),
            (Credentials("", "guessed-1"), "refuses the credentials"),
            (Credentials("nobody", "secret-1"), "refuses the credentials"),
        ):
            with pytest.raises(SignInRefused, match=told) as refused:
                process.dialer(credentials).dial()
            assert "guessed-1" not in str(refused.value)
        process.dialer(Credentials("", "secret-1")).dial().close()
        process.dialer(Credentials("default", "secret-1")).dial().close()
        gevent.sleep(0.01)


def test_an_engine_that_is_not_there_is_told() -> None:
    port = free_port()
    with pytest.raises(EngineSilent, match=f"127.0.0.1:{port}: Connection refused"):
        Dialer(EngineAddress(False, (("127.0.0.1", port),)), Credentials(), {}).dial()


def test_a_replica_is_not_taken(process: EngineProcess) -> None:
    with EngineProcess("--replicaof", f"127.0.0.1 {process.port}") as replica:
        with pytest.raises(EngineSilent, match="a replica"):
            replica.dialer().dial()
        gevent.sleep(0.01)
