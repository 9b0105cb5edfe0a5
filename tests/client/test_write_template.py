"""Requests that are built around base64 text: each is what the encoder makes of its record."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from execserver.client.rules import wire
from execserver.client.rules.process_state import ProcessState
from execserver.client.rules.write_template import METHOD, WriteTemplate
from execserver.protocol.process import WriteParams

NAMES = st.one_of(st.just("p"), st.text(st.characters(exclude_categories=["Cs"])))


@given(NAMES, NAMES, st.integers(1, 2**63 - 1), st.integers(1, 2**63 - 1), st.binary(max_size=300))
def test_a_request_is_the_one_of_its_record(
    process_id: str, prefix: str, call_id: int, number: int, data: bytes
) -> None:
    params = WriteParams(process_id=process_id, chunk=data, write_id=f"{prefix}{number}")
    made = WriteTemplate(process_id, prefix).request(call_id, number, data)
    assert made == wire.encode_request(call_id, METHOD, params)


def test_a_number_stands_for_one_write_id_both_ways() -> None:
    known = ProcessState("p", sandboxed=False)
    number = known.next_write()
    request = wire.encode_request(7, METHOD, known.numbered_piece(number, b"k"))
    assert known.write_template().request(7, number, b"k") == request
    assert known.writing_piece(b"k").write_id not in (None, known.numbered_piece(number, b"k").write_id)
