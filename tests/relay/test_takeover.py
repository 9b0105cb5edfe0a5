"""One live executor per environment, and what a revoked token ends."""

from __future__ import annotations

import signal

import pytest

from execserver.relay import tokens
from execserver.wire.close_codes import POLICY_VIOLATION
from execserver.wire.relay_frames import Data, Handshake, RelayFrame, Reset
from tests.support.relay_process import ENVIRONMENT, Peer, Refused, RelayProcess, key_object
from tests.support.waiting import wait_until

TAKEN_OVER = {
    "error": {"code": "executor_superseded", "message": "another executor has taken over this environment"}
}


def body(seed: int) -> dict[str, object]:
    return {"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key_object(seed)}


def test_a_newer_key_takes_over_and_the_old_one_cannot_come_back(relay: RelayProcess, token: str) -> None:
    url = relay.register(token, 1)["url"]
    with Peer(url) as old, relay.harness(token) as harness:
        harness.send("a", Handshake(b"x"))
        old.receive()
        with relay.executor(token, 2) as new:
            assert harness.receive() == RelayFrame("a", Reset("relay_executor_taken_over"))
            assert old.wait_for_end() == []
            assert old.close_code == POLICY_VIOLATION
            with pytest.raises(Refused) as refused:
                Peer(url)
            assert refused.value.status == 401
            for _ in range(2):
                assert relay.call(ENVIRONMENT, "register", body(1), token) == (409, TAKEN_OVER)
            with relay.harness(token) as later:
                later.send("b", Handshake(b"y"))
                assert new.receive() == RelayFrame("b", Handshake(b"y"))


def test_the_same_key_may_register_again(relay: RelayProcess, token: str) -> None:
    first = relay.register(token, 1)
    with Peer(first["url"]) as old:
        second = relay.register(token, 1)
        assert second["executor_registration_id"] != first["executor_registration_id"]
        assert old.wait_for_end() == []
        with Peer(second["url"]):
            pass


def test_a_grant_ends_with_the_registration_it_was_for(relay: RelayProcess, token: str) -> None:
    with relay.executor(token, 1):
        granted = relay.grant(token, 5)
        with relay.executor(token, 2):
            with pytest.raises(Refused) as refused:
                Peer(granted["url"])
            assert refused.value.status == 401
            question = {
                "executor_registration_id": granted["executor_registration_id"],
                "harness_public_key": key_object(5),
                "harness_key_authorization": granted["harness_key_authorization"],
            }
            assert relay.call(ENVIRONMENT, "validate", question, token) == (200, {"valid": False})


def test_a_call_waits_for_an_executor_that_is_on_its_way() -> None:
    with RelayProcess(limits={"connect_wait_s": 10}) as relay:
        token = relay.token()
        url = relay.register(token)["url"]
        waiting = relay.post_connect(token)
        wait_until(lambda: relay.metric("process_open_fds") > 0)
        with Peer(url):
            assert waiting.getresponse().status == 200
        waiting.close()


@pytest.mark.parametrize("told", [True, False])
def test_what_a_revoked_token_opened_is_ended(relay: RelayProcess, told: bool) -> None:
    executor_token, harness_token = relay.token(role="executor"), relay.token(role="harness")
    with relay.executor(executor_token) as executor, relay.harness(harness_token) as harness:
        url = relay.grant(harness_token)["url"]
        harness.send("a", Handshake(b"x"))
        executor.receive()
        assert tokens.revoke(str(relay.token_file), harness_token.split("-")[1])
        if told:
            relay.process.send_signal(signal.SIGHUP)
        assert harness.wait_for_end() == []
        assert harness.close_code == POLICY_VIOLATION
        assert executor.receive().body == Reset("harness_disconnected")
        with pytest.raises(Refused):
            Peer(url)
        assert relay.call(ENVIRONMENT, "connect", {}, harness_token)[0] == 401
        executor.send("b", Data(0, b"unharmed"))


def test_a_broken_token_file_changes_nothing(relay: RelayProcess, token: str) -> None:
    good = relay.token_file.read_text()
    relay.token_file.write_text("{")
    relay.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "going on with what was there before" in relay.errors())
    relay.register(token)
    relay.token_file.write_text(good)
