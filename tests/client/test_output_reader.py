"""Output that is read by comparing with what is expected: the same comes of it as of every other way."""

from __future__ import annotations

import random

import pytest

from execserver.client.rules import wire
from execserver.client.rules.event_log import Output
from execserver.client.rules.output_reader import OutputReader
from execserver.protocol.templates import ProcessTemplates

JUNK = [b"", b" ", b'"', b"=", b"A", b"1", b"}", b",", b"\\", b"\n", b"\xff"]


def message(process_id: str, seq: int, stream: str, data: bytes) -> bytes:
    return b"".join(ProcessTemplates(process_id).output(stream, seq, data))


def read(reader: OutputReader, text: bytes) -> tuple[str, Output] | None:
    """Read one message as the owner of a connection does."""
    found = reader.read(text)
    if found is not None:
        reader.expect_next(*found)
    return found


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the messages that were not as expected."""
    general, texts = wire.decode_output, []

    def decode(text: bytes) -> tuple[str, Output] | None:
        texts.append(text)
        return general(text)

    monkeypatch.setattr(wire, "decode_output", decode)
    return texts


def test_all_that_comes_is_read_as_the_general_way_reads_it(looked: list[bytes]) -> None:
    chance, reader, seq, outputs = random.Random(7), OutputReader(), 0, 0
    for _ in range(20_000):
        seq += chance.choice([1] * 9 + [0, 2])
        name = chance.choice(["p"] * 20 + ["q", 'with "quotes"', "é"])
        stream = chance.choice(["pty"] * 9 + ["stdout", "stderr"])
        text = bytearray(message(name, seq, stream, chance.randbytes(chance.choice([0, 1, 2, 3, 300]))))
        for _ in range(chance.choice([0] * 8 + [1, 2])):
            at = chance.choice([chance.randrange(len(text)), len(text) - chance.randrange(1, 8)])
            text[at : at + chance.choice([0, 1, 3])] = chance.choice(JUNK)
        found = read(reader, bytes(text))
        looked_before = len(looked)
        assert found == wire.decode_output(bytes(text))
        del looked[looked_before:]
        outputs += found is not None
    assert outputs - len(looked) > 1000  # so many were as expected


def test_a_stream_is_looked_through_at_its_first_message_only(looked: list[bytes]) -> None:
    reader = OutputReader()
    texts = [message("p", seq, "pty", b"k" * (seq * 1000)) for seq in range(5, 15)]
    assert [read(reader, text) for text in texts] == [
        ("p", Output(seq, "pty", b"k" * (seq * 1000))) for seq in range(5, 15)
    ]
    assert looked == texts[:1]


@pytest.mark.parametrize("chunk", [b"eB==", b"eA=", b"eA", b"e A==", b"eA==\n", b'eA==","chunk":"eA=='])
def test_a_chunk_that_is_no_base64_is_refused(chunk: bytes) -> None:
    reader = OutputReader()
    read(reader, message("p", 1, "pty", b"x"))
    text = message("p", 2, "pty", b"").replace(b'"chunk":""', b'"chunk":"%b"' % chunk)
    assert reader.read(text) == wire.decode_output(text)


@pytest.mark.parametrize("seq", [10**18 - 1, 10**18, pytest.param(10**5000, id="huge")])
def test_no_number_is_too_high_to_be_followed(seq: int) -> None:
    reader = OutputReader()
    reader.expect_next("p", Output(seq, "pty", b""))
    assert reader.read(message("p", 10**18, "pty", b"x")) == ("p", Output(10**18, "pty", b"x"))
