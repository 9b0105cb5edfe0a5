"""A running relay becomes another program, and no stream ends: who is connected notices nothing."""

from __future__ import annotations

import json
import random
import socket
import ssl
import threading
from pathlib import Path

import pytest

from execserver.wire.close_codes import GOING_AWAY
from execserver.wire.relay_frames import (
    RESET_HARNESS_LOST,
    Data,
    Handshake,
    RelayFrame,
    Reset,
    Resume,
    decode_frame,
    encode_frame,
)
from tests.conftest import LONG
from tests.support.certificates import make_authority
from tests.support.relay_process import ENVIRONMENT, WAIT, Peer, RelayProcess, key_object, masked_frame
from tests.support.upgrades import upgrade, upgraded
from tests.support.waiting import wait_until

HELLO = Handshake(b"hello")
pytestmark = pytest.mark.timeout(900 if LONG else 180)  # a busy machine takes some seconds for each upgrade


def test_streams_and_registrations_go_on(relay: RelayProcess, token: str) -> None:
    pid = relay.pid
    registered = relay.register(token)
    with Peer(registered["url"]) as executor, relay.harness(token, 1) as one, relay.harness(token, 2) as two:
        granted = relay.grant(token, 3)
        one.send("a", HELLO)
        two.send("b", HELLO)
        assert {executor.receive().stream_id, executor.receive().stream_id} == {"a", "b"}
        for number in range(3):
            said = upgraded(relay)
            assert "going on: 2 streams, 3 connections" in said
            executor.send("b", Data(number, b"for two"))
            executor.send("a", Data(number, b"for one"))
            assert one.receive() == RelayFrame("a", Data(number, b"for one"))
            assert two.receive() == RelayFrame("b", Data(number, b"for two"))
            one.send("b", Data(number, b"not mine"))  # a stream keeps its owner
            assert one.receive().body == Reset("relay_stream_of_another_harness")
            two.send("b", Data(number, b"mine"))
            assert executor.receive() == RelayFrame("b", Data(number, b"mine"))
        assert relay.process.pid == pid
        # What was granted before is good still, once; and so is the registration.
        with Peer(granted["url"]) as three:
            three.send("c", HELLO)
            assert executor.receive() == RelayFrame("c", HELLO)
        assert executor.receive() == RelayFrame("c", Reset(RESET_HARNESS_LOST))
        body = {
            "executor_registration_id": registered["executor_registration_id"],
            "harness_key_authorization": granted["harness_key_authorization"],
            "harness_public_key": key_object(3),
        }
        assert relay.call(ENVIRONMENT, "validate", body, token) == (200, {"valid": True})
        upgraded(relay)
        assert relay.call(ENVIRONMENT, "validate", body, token) == (200, {"valid": False})


def test_frames_of_which_a_part_has_come_are_whole_in_the_end(relay: RelayProcess, token: str) -> None:
    with relay.executor(token) as executor, relay.harness(token) as harness:
        content = random.Random(1).randbytes(200_000)
        message = encode_frame(RelayFrame("s", Data(0, content)))
        fragments = masked_frame(2, message[:70_000], final=False) + masked_frame(0, message[70_000:])
        harness.send("s", HELLO)
        assert executor.receive().body == HELLO
        for data, ends in (
            (masked_frame(2, message), (1, 9, 60_000)),
            (fragments, (7, 69_000, 70_015, 150_000)),
        ):
            at = 0
            for end in (*ends, len(data)):
                harness.send_raw(data[at:end])
                at = end
                if end < len(data):
                    upgraded(relay)
            assert executor.receive() == RelayFrame("s", Data(0, content))


def test_what_waits_for_a_peer_that_does_not_read_is_sent_in_order() -> None:
    """So much that senders are held back: a link that is not read stays so, and goes on in the end."""
    with RelayProcess(limits={"stalled_s": 300.0}) as relay:
        token = relay.token()
        with (
            relay.executor(token) as executor,
            Peer(relay.grant(token)["url"], receive_buffer=64 * 1024) as harness,
        ):
            give_and_take(relay, executor, harness)


def give_and_take(relay: RelayProcess, executor: Peer, harness: Peer) -> None:
    """Send more to a harness than can wait for it, upgrade, and have it read."""
    for name in "st":
        harness.send(name, HELLO)
        executor.receive()
    sent: dict[str, list[bytes]] = {"s": [], "t": []}
    total = 200

    def push() -> None:
        for number in range(total):
            name = "st"[number % 2]
            sent[name].append(executor.send(name, Data(number, bytes([number]) * 60_000)))

    pushing = threading.Thread(target=push)
    pushing.start()
    wait_until(lambda: relay.metric('execserver_relay_held_back_total{reason="slow_harness"}') > 0)
    for _ in range(3):
        upgraded(relay)
    got: dict[str, list[bytes]] = {"s": [], "t": []}
    for number in range(total):
        message = harness.receive_message()
        assert message is not None, relay.errors()
        got[decode_frame(message).stream_id].append(message)
        if number % 100 == 40:
            upgraded(relay)
    pushing.join(WAIT)
    assert got == sent


def test_a_stream_whose_harness_is_away_can_be_resumed(relay: RelayProcess, token: str) -> None:
    with relay.executor(token) as executor:
        with relay.harness(token) as harness:
            harness.send("s", HELLO)
            assert executor.receive().body == HELLO
        assert executor.receive().body == Reset(RESET_HARNESS_LOST)
        upgraded(relay)
        with relay.harness(token) as harness:
            harness.send("s", Resume(4))
            assert executor.receive() == RelayFrame("s", Resume(4))
            executor.send("s", Data(4, b"on"))
            assert harness.receive() == RelayFrame("s", Data(4, b"on"))


def test_a_superseded_executor_stays_out(relay: RelayProcess, token: str) -> None:
    relay.register(token, 1)
    relay.register(token, 2)
    upgraded(relay)
    body = {"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key_object(1)}
    assert relay.call(ENVIRONMENT, "register", body, token)[0] == 409


def test_a_token_that_is_gone_ends_its_websockets() -> None:
    """It goes where the program before does not look any more."""
    with RelayProcess(limits={"token_check_s": 600.0}) as relay:
        token, other = relay.token(), relay.token()
        with relay.executor(token) as executor, relay.harness(other) as harness:
            harness.send("s", HELLO)
            executor.receive()
            revoke(relay, other)
            upgraded(relay)
            harness.wait_for_end()
            assert harness.close_code == 1008
            assert executor.receive().body == Reset(RESET_HARNESS_LOST)


def revoke(relay: RelayProcess, token: str) -> None:
    """Take a token out of the file; nothing tells the relay."""
    tokens = json.loads(relay.token_file.read_text())["tokens"]
    left = [each for each in tokens if each["id"] != token.split("-")[1]]
    relay.token_file.write_text(json.dumps({"tokens": left}))


def test_what_somebody_has_sent_who_is_gone_arrives(relay: RelayProcess, token: str) -> None:
    """Of each so little that it is read to its end, of all together more than the kernel takes."""
    registered = relay.register(token)
    names = [f"stream-{number}" for number in range(12)]
    with Peer(registered["url"], receive_buffer=4096) as executor:
        sent: dict[str, list[bytes]] = {}
        for seed, name in enumerate(names):
            with relay.harness(token, seed) as harness:
                sent[name] = [harness.send(name, Data(at, bytes([at]) * 60_000)) for at in range(4)]
        wait_until(lambda: relay.errors().count("harness gone") == len(names))
        upgraded(relay)
        got: dict[str, list[bytes]] = {name: [] for name in names}
        resets = []
        for _ in range(5 * len(names)):
            message = executor.receive_message()
            assert message is not None
            frame = decode_frame(message)
            if isinstance(frame.body, Reset):
                resets.append(frame.stream_id)
            else:
                got[frame.stream_id].append(message)
        assert got == sent
        assert resets == names


def test_a_websocket_that_is_being_closed_gets_the_rest(relay: RelayProcess, token: str) -> None:
    other = relay.token()
    with (
        relay.executor(token) as executor,
        Peer(relay.grant(other)["url"], receive_buffer=4096) as harness,
    ):
        harness.send("s", HELLO)
        executor.receive()
        sent = [executor.send("s", Data(number, bytes([number]) * 50_000)) for number in range(40)]
        wait_until(lambda: relay.metric('execserver_relay_held_back_total{reason="slow_harness"}') > 0)
        revoke(relay, other)
        wait_until(lambda: "reason=revoked" in relay.errors())
        upgraded(relay)
        found = harness.wait_for_end()
        assert found == sent[: len(found)]
        assert len(found) > 2
        assert harness.close_code == 1008


def test_requests_of_which_a_part_has_come_are_answered() -> None:
    """Between two requests of one connection, before the first, and in the middle of a head."""
    with RelayProcess(limits={"unauthenticated_s": 60.0}) as relay:
        body = json.dumps(
            {"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key_object()}
        ).encode()
        head = (
            f"POST /cloud/environment/{ENVIRONMENT}/register HTTP/1.1\r\nhost: localhost\r\n"
            f"authorization: Bearer {relay.token()}\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode()
        silent, begun, used = (socket.create_connection(("127.0.0.1", relay.port), WAIT) for _ in range(3))
        with silent, begun, used:
            begun.sendall(head[:40])
            used.sendall(head + body)
            assert b" 200 " in answer_of(used)
            for _ in range(2):
                upgraded(relay)
            begun.sendall(head[40:] + body)
            for each in (silent, used):
                each.sendall(head + body)
            assert [answer_of(each)[:13] for each in (silent, begun, used)] == [b"HTTP/1.1 200 "] * 3


def answer_of(sock: socket.socket) -> bytes:
    """Return one answer to a call, to the end of its JSON object."""
    data = b""
    while not data.endswith(b"}"):
        piece = sock.recv(65536)
        assert piece, data
        data += piece
    return data


def test_a_call_that_waits_longer_is_told_to_come_again() -> None:
    with RelayProcess(limits={"connect_wait_s": 60.0}) as patient:
        given = patient.token()
        patient.register(given)
        connection = patient.post_connect(given)
        upgraded(patient)
        response = connection.getresponse()
        assert (response.status, response.getheader("retry-after")) == (503, "1")
        connection.close()


def test_a_state_file_goes_on(tmp_path: Path) -> None:
    with RelayProcess("--state", str(tmp_path / "state.db")) as relay:
        token = relay.token()
        registered = relay.register(token)
        with Peer(registered["url"]) as executor:
            for _ in range(3):
                granted = relay.grant(token)
                upgraded(relay)
                with Peer(granted["url"]) as harness:
                    harness.send("s", HELLO)
                    assert executor.receive().body == HELLO
                assert executor.receive().body == Reset(RESET_HARNESS_LOST)
        (tmp_path / "state.db").unlink()
        done = upgrade(relay)
        assert (done.returncode, "unable to open database file" in done.stderr) == (1, True), done


def test_with_tls_everybody_is_sent_away_with_a_reason_and_can_come_back(tmp_path: Path) -> None:
    authority = make_authority()
    pem = tmp_path / "server.pem"
    pem.write_bytes(authority.issue("127.0.0.1"))
    words = ("--tls-cert", str(pem), "--tls-key", str(pem))
    with RelayProcess(*words, listen="https://127.0.0.1:0") as relay:
        relay.tls = ssl.create_default_context(cadata=authority.pem.decode())
        token = relay.token()
        registered = relay.register(token)
        with (
            Peer(registered["url"], relay.tls) as executor,
            Peer(relay.grant(token)["url"], relay.tls) as harness,
        ):
            harness.send("s", HELLO)
            assert executor.receive().body == HELLO
            upgraded(relay)
            harness.wait_for_end(), executor.wait_for_end()
            assert (harness.close_code, executor.close_code) == (GOING_AWAY, GOING_AWAY)
        with (
            Peer(registered["url"], relay.tls) as executor,
            Peer(relay.grant(token)["url"], relay.tls) as harness,
        ):
            harness.send("s", Resume(1))
            assert executor.receive() == RelayFrame("s", Resume(1))
