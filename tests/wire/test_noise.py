"""The handshake: known answers, sessions of real programs, and what a wrong message does."""

from __future__ import annotations

import random
from typing import Any

import pytest

from execserver.wire.noise import (
    MESSAGE1_BYTES,
    MESSAGE2_BYTES,
    REJECTED,
    HandshakeFailed,
    Initiator,
    RejectedByRegistry,
    Responder,
    prologue,
)
from execserver.wire.noise_keys import PublicKeys, StaticKeys
from execserver.wire.noise_records import RecordReceiver, RecordSender
from execserver.wire.noise_state import SymmetricState
from execserver.wire.relay_frames import Data, Handshake, Resume, decode_frame
from tests.conftest import LONG
from tests.wire.noise_vectors import (
    FixedEntropy,
    encapsulation,
    identity,
    known_prologue,
    octets,
    vectors,
)


@pytest.mark.parametrize("vector", vectors()["prologue_vectors"])
def test_known_prologues(vector: dict[str, str]) -> None:
    made = prologue(vector["environment_id"], vector["executor_registration_id"], vector["stream_id"])
    assert made.hex() == vector["prologue"]


class Watched:
    """Notes the symmetric state after every token."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states: list[tuple[str, str, str]] = []
        for name in ("mix_hash", "mix_key", "mix_key_and_hash", "encrypt_and_hash"):
            self._watch(monkeypatch, name)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        original = getattr(SymmetricState, name)

        def noted(state: SymmetricState, *args: Any) -> Any:
            result = original(state, *args)
            self.states.append((state.h.hex(), state.ck.hex(), state.k.hex()))
            return result

        monkeypatch.setattr(SymmetricState, name, noted)


def pair() -> tuple[Initiator, Responder]:
    """Return both ends of the known handshake."""
    base = ("handshake", "encapsulations")
    initiator = Initiator(
        identity("initiator_static"),
        identity("responder_static").public,
        known_prologue("handshake"),
        FixedEntropy(identity("initiator_ephemeral"), [encapsulation(*base, "initiator_skem")]),
    )
    responder = Responder(
        identity("responder_static"),
        known_prologue("handshake"),
        FixedEntropy(
            identity("responder_ephemeral"),
            [encapsulation(*base, "responder_ekem"), encapsulation(*base, "responder_skem")],
        ),
    )
    return initiator, responder


def test_the_known_handshake_passes_through_the_known_states(monkeypatch: pytest.MonkeyPatch) -> None:
    known = vectors()["handshake"]
    watched = Watched(monkeypatch)
    initiator, responder = pair()
    initial = [(state["h"], state["ck"]) for state in known["initial_states"]]
    assert {state[:2] for state in watched.states} >= set(initial[1:])

    message1 = initiator.write_message1(known["authorization"].encode())
    assert message1.hex() == known["message1"]
    assert {(s["h"], s["ck"], s["k"]) for s in known["message1_states"]} <= set(watched.states)

    assert responder.read_message1(message1) == (
        identity("initiator_static").public,
        known["authorization"].encode(),
    )
    message2 = responder.write_message2()
    assert message2.hex() == known["message2"]
    assert {(s["h"], s["ck"], s["k"]) for s in known["message2_states"]} <= set(watched.states)

    initiator.read_message2(message2)
    assert initiator.handshake_hash.hex() == responder.handshake_hash.hex() == known["handshake_hash"]


def test_known_records_are_sealed_and_opened() -> None:
    initiator, responder = pair()
    responder.read_message1(initiator.write_message1(vectors()["handshake"]["authorization"].encode()))
    initiator.read_message2(responder.write_message2())
    ends = {
        "initiator->responder": (initiator.send, responder.receive),
        "responder->initiator": (responder.send, initiator.receive),
    }
    for record in vectors()["records"]:
        send, receive = ends[record["direction"]]
        assert send.counter == receive.counter == record["nonce"]
        assert send.encrypt(bytes.fromhex(record["plaintext"])).hex() == record["ciphertext"]
        assert receive.decrypt(bytes.fromhex(record["ciphertext"])).hex() == record["plaintext"]


def test_a_session_of_the_real_executor_is_understood() -> None:
    captured = vectors()["captured_executor"]
    initiator = Initiator(
        identity("initiator_static"),
        PublicKeys.from_json(captured["executor_public_key"]),
        known_prologue("captured_executor"),
        FixedEntropy(
            identity("initiator_ephemeral"), [encapsulation("captured_executor", "skem_encapsulation")]
        ),
    )
    assert initiator.write_message1(captured["authorization"].encode()).hex() == captured["message1"]
    answer = decode_frame(octets("captured_executor", "message2_frame"))
    assert answer.body == Handshake(octets("captured_executor", "message2"))
    initiator.read_message2(octets("captured_executor", "message2"))
    assert_frames_open(RecordReceiver(initiator.receive), captured["executor_data_frames"])


def test_a_session_of_the_real_harness_is_understood() -> None:
    captured = vectors()["captured_harness"]
    responder = Responder(
        identity("responder_static"),
        known_prologue("captured_harness"),
        FixedEntropy(
            identity("responder_ephemeral"),
            [
                encapsulation("captured_harness", "ekem_encapsulation"),
                encapsulation("captured_harness", "skem_encapsulation"),
            ],
        ),
    )
    assert decode_frame(octets("captured_harness", "resume_frame")).body == Resume(0)
    frame = decode_frame(octets("captured_harness", "handshake_frame"))
    assert frame.body == Handshake(octets("captured_harness", "message1"))
    harness = PublicKeys.from_json(captured["connect_body"]["harness_public_key"])
    message1 = octets("captured_harness", "message1")
    assert responder.read_message1(message1) == (harness, captured["authorization"].encode())
    assert responder.write_message2().hex() == captured["message2"]
    assert_frames_open(RecordReceiver(responder.receive), captured["harness_data_frames"])


def assert_frames_open(receiver: RecordReceiver, frames: list[dict[str, Any]]) -> None:
    for captured in frames:
        body = decode_frame(bytes.fromhex(captured["frame"])).body
        assert isinstance(body, Data)
        assert body.seq == captured["seq"]
        plaintext = bytes.fromhex(captured["plaintext"])
        assert receiver.feed(body.seq, body.payload) == [plaintext[4:]]


def fresh_pair(text: bytes = b"one") -> tuple[Initiator, Responder]:
    executor = StaticKeys.generate()
    return Initiator(StaticKeys.generate(), executor.public, text), Responder(executor, text)


def test_two_fresh_ends_understand_each_other() -> None:
    initiator, responder = fresh_pair()
    message1 = initiator.write_message1(b"authorization")
    assert len(message1) == MESSAGE1_BYTES + len(b"authorization") == 3568 + 13
    assert responder.read_message1(message1)[1] == b"authorization"
    message2 = responder.write_message2()
    assert len(message2) == MESSAGE2_BYTES == 3424
    initiator.read_message2(message2)
    (sealed,) = RecordSender(initiator.send).seal(b"{}")
    assert RecordReceiver(responder.receive).feed(*sealed) == [b"{}"]
    (sealed,) = RecordSender(responder.send).seal(b"[]")
    assert RecordReceiver(initiator.receive).feed(*sealed) == [b"[]"]


def test_another_prologue_is_noticed_by_the_executor() -> None:
    executor = StaticKeys.generate()
    message1 = Initiator(StaticKeys.generate(), executor.public, b"one").write_message1(b"")
    with pytest.raises(HandshakeFailed, match="the harness's key cannot be decrypted"):
        Responder(executor, b"two").read_message1(message1)


def test_another_executor_cannot_read_the_first_message() -> None:
    initiator, _ = fresh_pair()
    with pytest.raises(HandshakeFailed):
        Responder(StaticKeys.generate(), b"one").read_message1(initiator.write_message1(b""))


def test_another_executor_cannot_answer() -> None:
    initiator, _ = fresh_pair()
    initiator.write_message1(b"")
    other, executor = fresh_pair()
    executor.read_message1(other.write_message1(b""))
    with pytest.raises(HandshakeFailed):
        initiator.read_message2(executor.write_message2())


def test_a_rejection_is_told_in_the_second_message() -> None:
    initiator, responder = fresh_pair()
    responder.read_message1(initiator.write_message1(b""))
    message2 = responder.write_message2(REJECTED)
    assert len(message2) == 3465
    with pytest.raises(RejectedByRegistry, match="rejected this client's authentication"):
        initiator.read_message2(message2)
    with pytest.raises(HandshakeFailed):
        _ = initiator.send


@pytest.mark.parametrize("payload", [REJECTED[:-1], REJECTED + b"x", b"x"])
def test_any_other_payload_of_the_executor_fails_the_handshake(payload: bytes) -> None:
    initiator, responder = fresh_pair()
    responder.read_message1(initiator.write_message1(b""))
    with pytest.raises(HandshakeFailed, match="carries a payload") as failed:
        initiator.read_message2(responder.write_message2(payload))
    assert not isinstance(failed.value, RejectedByRegistry)


def test_the_second_message_may_be_prepared() -> None:
    initiator, responder = fresh_pair()
    responder.read_message1(initiator.write_message1(b""))
    responder.prepare_message2()
    responder.prepare_message2()
    message2 = responder.write_message2()
    assert len(message2) == 3424
    initiator.read_message2(message2)


@pytest.mark.parametrize("which", ["static", "ephemeral"])
def test_a_harness_whose_key_is_none_gets_no_answer(which: str) -> None:
    executor = StaticKeys.generate()
    initiator = Initiator(StaticKeys.generate(), executor.public, b"")
    keys = initiator._static if which == "static" else initiator._ephemeral
    keys.public = PublicKeys(keys.public.x25519, b"\xff" * 1184)  # coefficients above the modulus
    responder = Responder(executor, b"")
    responder.read_message1(initiator.write_message1(b"authorization"))
    for act in (responder.prepare_message2, responder.write_message2):
        with pytest.raises(HandshakeFailed):
            act()
    assert set(responder.state.ck) == set(responder.state.k) == {0}


def test_a_prepared_answer_gives_no_ciphers_before_it_is_written() -> None:
    initiator, responder = fresh_pair()
    responder.read_message1(initiator.write_message1(b""))
    responder.prepare_message2()
    with pytest.raises(HandshakeFailed):
        _ = responder.send
    responder.clear()
    assert set(responder.state.ck) == set(responder.state.k) == {0}
    with pytest.raises(HandshakeFailed):
        responder.write_message2()


def test_an_authorization_that_is_too_long_is_not_sent() -> None:
    initiator, _ = fresh_pair()
    with pytest.raises(HandshakeFailed, match="longer than 4096 bytes"):
        initiator.write_message1(bytes(4097))


@pytest.mark.parametrize("size", [0, 1, MESSAGE1_BYTES - 1, 65536])
def test_first_messages_of_a_wrong_size_are_refused(size: int) -> None:
    with pytest.raises(HandshakeFailed, match="bytes"):
        fresh_pair()[1].read_message1(bytes(size))


def test_nothing_is_sealed_before_the_end_of_the_handshake() -> None:
    initiator, responder = fresh_pair()
    with pytest.raises(HandshakeFailed):
        _ = initiator.send
    with pytest.raises(HandshakeFailed):
        responder.write_message2()


def test_a_flipped_bit_anywhere_fails_the_handshake() -> None:
    rng = random.Random(7)
    executor, harness = StaticKeys.generate(), StaticKeys.generate()
    message1 = Initiator(harness, executor.public, b"").write_message1(b"authorization")
    for position in spread(rng, len(message1)):
        responder = Responder(executor, b"")
        with pytest.raises(HandshakeFailed):
            responder.read_message1(flipped(message1, position, rng))
        assert set(responder.state.ck) == set(responder.state.k) == {0}
    for _ in range(40 if LONG else 4):
        initiator, responder = Initiator(harness, executor.public, b""), Responder(executor, b"")
        responder.read_message1(initiator.write_message1(b""))
        message2 = responder.write_message2()
        with pytest.raises(HandshakeFailed):
            initiator.read_message2(flipped(message2, rng.randrange(len(message2)), rng))
        assert set(initiator.state.ck) == {0}


def spread(rng: random.Random, size: int) -> list[int]:
    """Return positions in every field of a message: its first and last bytes and some between."""
    return [0, 1087, 1088, 1119, 1120, 2303, 2304, 2351, 2352, 3551, 3552, size - 1] + [
        rng.randrange(size) for _ in range(500 if LONG else 20)
    ]


def flipped(message: bytes, position: int, rng: random.Random) -> bytes:
    changed = bytearray(message)
    changed[position] ^= 1 << rng.randrange(8)
    return bytes(changed)


def test_secrets_are_overwritten_and_never_shown() -> None:
    initiator, responder = fresh_pair()
    responder.read_message1(initiator.write_message1(b""))
    initiator.read_message2(responder.write_message2())
    for end in (initiator, responder):
        assert set(end.state.ck) == set(end.state.k) == {0}
    assert repr(initiator.send) == "<TransportCipher at 0>"
