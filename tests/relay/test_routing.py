"""Who gets which frame: streams of one environment, and of several, and what a lost side means."""

from __future__ import annotations

import pytest

from execserver.wire.relay_frames import (
    RESET_EXECUTOR_LOST,
    RESET_HARNESS_LOST,
    AckFrame,
    Body,
    Data,
    Handshake,
    Heartbeat,
    RelayFrame,
    Reset,
    Resume,
    encode_frame,
)
from tests.support.relay_process import ENVIRONMENT, Peer, Refused, RelayProcess
from tests.support.waiting import wait_until

HELLO = Handshake(b"hello")


def test_frames_pass_unchanged_both_ways(relay: RelayProcess, token: str) -> None:
    with relay.executor(token) as executor, relay.harness(token) as harness:
        bodies: list[Body] = [
            Resume(),
            HELLO,
            Data(0, b"x" * 61_456),
            AckFrame(),
            Heartbeat(),
            Data(1, b"y" * 200_000),
        ]
        sent = [harness.send("s-1", body, ack=7, ack_bits=300) for body in bodies]
        assert [executor.receive_message() for _ in sent] == sent
        sent = [executor.send("s-1", body) for body in bodies]
        assert [harness.receive_message() for _ in sent] == sent


def test_each_stream_goes_to_its_own_harness(relay: RelayProcess, token: str) -> None:
    with relay.executor(token) as executor, relay.harness(token, 1) as one, relay.harness(token, 2) as two:
        one.send("a", HELLO)
        two.send("b", HELLO)
        assert {executor.receive().stream_id, executor.receive().stream_id} == {"a", "b"}
        executor.send("b", Data(0, b"for two"))
        executor.send("a", Data(0, b"for one"))
        assert one.receive() == RelayFrame("a", Data(0, b"for one"))
        assert two.receive() == RelayFrame("b", Data(0, b"for two"))


def test_environments_are_apart(relay: RelayProcess, token: str) -> None:
    other = relay.token("box-2")
    with (
        relay.executor(token) as executor,
        relay.executor(other, environment_id="box-2") as executor_two,
        relay.harness(token) as harness,
        relay.harness(other, environment_id="box-2") as harness_two,
    ):
        harness.send("same", HELLO)
        harness_two.send("same", Handshake(b"two"))
        assert executor.receive() == RelayFrame("same", HELLO)
        assert executor_two.receive() == RelayFrame("same", Handshake(b"two"))
        executor_two.send("same", Data(0, b"for two"))
        executor.send("same", Data(0, b"for one"))
        assert harness.receive() == RelayFrame("same", Data(0, b"for one"))
        assert harness_two.receive() == RelayFrame("same", Data(0, b"for two"))


def test_a_harness_cannot_use_the_stream_of_another(relay: RelayProcess, token: str) -> None:
    with relay.executor(token) as executor, relay.harness(token, 1) as one, relay.harness(token, 2) as two:
        one.send("a", HELLO)
        assert executor.receive().stream_id == "a"
        for body in (Resume(), Data(0, b"forged"), Reset("die")):
            two.send("a", body)
            assert two.receive() == RelayFrame("a", Reset("relay_stream_of_another_harness"))
        one.send("a", Data(0, b"real"))
        assert executor.receive() == RelayFrame("a", Data(0, b"real"))


def test_a_second_id_hidden_behind_the_first_is_the_one_that_counts(relay: RelayProcess, token: str) -> None:
    """A receiver takes the last of a repeated field, so the relay has to route by that one."""
    with relay.executor(token) as executor, relay.harness(token, 1) as one, relay.harness(token, 2) as two:
        one.send("a", HELLO)
        two.send("b", HELLO)
        executor.receive(), executor.receive()
        hidden = encode_frame(RelayFrame("b", Reset("die"))) + b"\x12\x01a"
        two.send_message(hidden)
        assert two.receive() == RelayFrame("a", Reset("relay_stream_of_another_harness"))
        two.send("b", Data(0, b"next"))
        assert executor.receive() == RelayFrame("b", Data(0, b"next"))


def test_the_loss_of_a_harness_is_told_for_its_streams_only(relay: RelayProcess, token: str) -> None:
    with relay.executor(token) as executor, relay.harness(token, 1) as one, relay.harness(token, 2) as two:
        for stream_id in ("a1", "a2"):
            one.send(stream_id, HELLO)
        two.send("b", HELLO)
        for _ in range(3):
            executor.receive()
        one.close()
        lost = {executor.receive() for _ in range(2)}
        assert lost == {RelayFrame(name, Reset(RESET_HARNESS_LOST)) for name in ("a1", "a2")}
        executor.send("b", Data(0, b"on"))
        assert two.receive().stream_id == "b"


def test_a_stream_is_taken_up_again_by_the_same_key(relay: RelayProcess, token: str) -> None:
    with relay.executor(token) as executor:
        with relay.harness(token, 1) as one:
            one.send("a", HELLO)
            executor.receive()
        assert executor.receive() == RelayFrame("a", Reset(RESET_HARNESS_LOST))
        executor.send("a", Data(0, b"nobody is there"))
        with relay.harness(token, 2) as stranger:
            stranger.send("a", Resume(3))
            assert stranger.receive() == RelayFrame("a", Reset("relay_stream_of_another_harness"))
        with relay.harness(token, 1) as again:
            again.send("a", Resume(3))
            assert executor.receive() == RelayFrame("a", Resume(3))
            executor.send("a", Data(0, b"back"))
            assert again.receive() == RelayFrame("a", Data(0, b"back"))
    assert relay.metric("execserver_relay_resumed_streams_total") == 1


def test_a_new_websocket_replaces_one_that_is_half_dead(relay: RelayProcess, token: str) -> None:
    with relay.executor(token) as executor, relay.harness(token, 1) as old, relay.harness(token, 1) as new:
        old.send("a", HELLO)
        executor.receive()
        new.send("a", Resume(1))
        assert executor.receive() == RelayFrame("a", Resume(1))
        old.send("a", Data(9, b"late"))  # dropped: the stream has moved
        new.send("a", Data(1, b"on"))
        assert executor.receive() == RelayFrame("a", Data(1, b"on"))
        executor.send("a", Data(0, b"down"))
        assert new.receive() == RelayFrame("a", Data(0, b"down"))
        old.close()
        new.send("a", Data(2, b"still"))
        assert executor.receive() == RelayFrame("a", Data(2, b"still"))


def test_a_stream_is_forgotten_after_its_time() -> None:
    with RelayProcess(limits={"resume_grace_s": 0.1}) as relay:
        token = relay.token()
        with relay.executor(token) as executor:
            with relay.harness(token, 1) as one:
                one.send("a", HELLO)
                executor.receive()
            executor.receive()
            wait_until(lambda: relay.metric("execserver_relay_streams") == 0)
            with relay.harness(token, 2) as stranger:
                stranger.send("a", HELLO)
                assert executor.receive() == RelayFrame("a", HELLO)


def test_the_loss_of_the_executor_is_told_and_it_may_come_back(relay: RelayProcess, token: str) -> None:
    url = relay.register(token)["url"]
    executor = Peer(url)
    with relay.harness(token) as harness:
        harness.send("a", HELLO)
        executor.receive()
        executor.abort()
        assert harness.receive() == RelayFrame("a", Reset(RESET_EXECUTOR_LOST))
        harness.send("a", Data(0, b"dropped: nobody is there"))
        with Peer(url) as again:
            again.send("a", Resume(1))
            assert harness.receive() == RelayFrame("a", Resume(1))
            harness.send("a", Data(1, b"on"))
            assert again.receive() == RelayFrame("a", Data(1, b"on"))


def test_the_executors_second_websocket_replaces_its_first(relay: RelayProcess, token: str) -> None:
    url = relay.register(token)["url"]
    with Peer(url) as first, relay.harness(token) as harness:
        harness.send("a", HELLO)
        first.receive()
        with Peer(url) as second:
            assert harness.receive() == RelayFrame("a", Reset(RESET_EXECUTOR_LOST))
            assert first.wait_for_end() == []
            harness.send("a", Resume())
            assert second.receive() == RelayFrame("a", Resume())


def test_a_reset_ends_a_stream_and_frees_its_id(relay: RelayProcess, token: str) -> None:
    with relay.executor(token) as executor, relay.harness(token, 1) as one, relay.harness(token, 2) as two:
        one.send("a", HELLO)
        executor.receive()
        executor.send("a", Reset("noise_relay_protocol_error"))
        assert one.receive().body == Reset("noise_relay_protocol_error")
        two.send("a", HELLO)
        assert executor.receive() == RelayFrame("a", HELLO)
        two.send("a", Reset("closed"))
        assert executor.receive() == RelayFrame("a", Reset("closed"))
        two.close()
        one.send("b", HELLO)
        assert executor.receive() == RelayFrame("b", HELLO)  # and no reset for `a` before it


def test_streams_are_limited_for_a_harness_and_for_all() -> None:
    with RelayProcess("--max-streams", "4") as relay:
        token = relay.token()
        with (
            relay.executor(token) as executor,
            relay.harness(token, 1) as one,
            relay.harness(token, 2) as two,
        ):
            for stream_id in ("a1", "a2", "a3"):
                one.send(stream_id, HELLO)
            assert one.receive() == RelayFrame("a3", Reset("relay_too_many_streams"))
            for stream_id in ("b1", "b2"):
                two.send(stream_id, HELLO)
            assert {executor.receive().stream_id for _ in range(4)} == {"a1", "a2", "b1", "b2"}
            with relay.harness(token, 3) as three:
                three.send("c", HELLO)
                assert three.receive() == RelayFrame("c", Reset("relay_too_many_streams"))
                one.close()  # what nobody uses any more makes room
                assert {executor.receive().body for _ in range(2)} == {Reset(RESET_HARNESS_LOST)}
                three.send("c", HELLO)
                assert executor.receive() == RelayFrame("c", HELLO)


def test_harnesses_are_limited() -> None:
    with RelayProcess("--max-harnesses", "1") as relay:
        token = relay.token()
        with relay.executor(token), relay.harness(token):
            with pytest.raises(Refused) as refused:
                relay.harness(token)
            assert refused.value.status == 429


@pytest.mark.parametrize(
    "ticket", ["", "token=", "token=x-guess", "token=h-guess", "token=x-guess&token=y", "&" * 40]
)
def test_a_guessed_credential_leads_nowhere(relay: RelayProcess, token: str, ticket: str) -> None:
    relay.register(token)
    with pytest.raises(Refused) as refused:
        Peer(f"ws://127.0.0.1:{relay.port}/rendezvous/{ENVIRONMENT}?{ticket}")
    assert refused.value.status == 401


def test_a_refusal_says_why_in_a_header(relay: RelayProcess, token: str) -> None:
    with pytest.raises(Refused) as refused:
        Peer(f"ws://127.0.0.1:{relay.port}/rendezvous/nobody?token=x-guess")
    assert refused.value.headers["x-codex-rendezvous-rejection-reason"] == "unknown_route"
    registered = relay.register(token)
    relay.register(token)
    with pytest.raises(Refused) as refused:
        Peer(registered["url"])  # of the registration before
    assert refused.value.headers["x-codex-rendezvous-rejection-reason"] == "expired"


def test_a_credential_is_for_its_environment(relay: RelayProcess, token: str) -> None:
    relay.register(relay.token("box-2"), environment_id="box-2")
    url = relay.register(token)["url"]
    with pytest.raises(Refused) as refused:
        Peer(url.replace(f"/{ENVIRONMENT}?", "/box-2?"))
    assert refused.value.status == 401


def test_a_harness_credential_expires() -> None:
    with RelayProcess(limits={"grant_ttl_s": 0.2}) as relay:
        token = relay.token()
        with relay.executor(token):
            url = relay.grant(token)["url"]

            def is_refused() -> bool:
                try:
                    Peer(url).close()
                except Refused as error:
                    return error.status == 401
                return False

            wait_until(is_refused)


def test_silence_ends_a_link_and_a_pong_keeps_it() -> None:
    with RelayProcess(limits={"ping_s": 0.8}) as relay:  # gone after two; this test may be late, too
        token = relay.token()
        with relay.executor(token) as executor, pytest.raises(TimeoutError):
            executor.receive_message(3.0)
        with relay.executor(token) as executor:
            executor.answers_pings = False
            executor.wait_for_end()
        assert relay.metric('execserver_relay_closed_total{reason="silent"}') == 1
        assert relay.metric('execserver_relay_closed_total{reason="left"}') == 1
