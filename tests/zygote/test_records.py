from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.zygote.confinement import (
    BUBBLEWRAP,
    LANDLOCK,
    NATIVE,
    UNCONFINED,
    Confinement,
    filtered,
    refused,
)
from execserver.zygote.records import (
    Begun,
    Exited,
    Failed,
    Record,
    RecordError,
    Release,
    Signalled,
    SignalRequest,
    SpawnRequest,
    Started,
    WorkerRequest,
    decode,
    encode,
)
from execserver.zygote.stages import STAGE_CWD, STAGE_EXEC, STAGE_LOOKUP, STAGE_ROOT

ids = st.integers(0, 2**64 - 1)
numbers = st.integers(-(2**63), 2**63 - 1)
naturals = st.integers(0, 2**63 - 1)
strings = st.binary(max_size=40).map(lambda data: data.replace(b"\0", b""))

confinements = st.one_of(
    st.just(UNCONFINED),
    st.builds(Confinement, st.sampled_from([NATIVE, LANDLOCK]), st.binary(max_size=100)),
    st.builds(Confinement, st.just(BUBBLEWRAP), st.binary(max_size=100), st.binary(max_size=100)),
    st.builds(filtered, st.text(max_size=10)),
    st.builds(refused, st.text(max_size=100), st.integers(0, 255)),
)
spawn_requests = st.builds(
    SpawnRequest,
    ids,
    st.lists(strings, min_size=1, max_size=5),
    st.lists(strings, max_size=5),
    strings,
    st.none() | strings,
    strings,
    st.booleans(),
    naturals,
    confinements,
    st.binary(max_size=100),
)
worker_requests = st.builds(
    WorkerRequest,
    ids,
    confinements,
    naturals,
)
records = st.one_of(
    spawn_requests,
    worker_requests,
    st.builds(Release, ids),
    st.builds(Begun, ids),
    st.builds(Started, ids, numbers),
    st.builds(
        Failed,
        ids,
        st.sampled_from([STAGE_CWD, STAGE_LOOKUP, STAGE_EXEC, STAGE_ROOT]),
        numbers,
        numbers,
        st.lists(strings, max_size=4),
    ),
    st.builds(SignalRequest, ids, naturals, numbers),
    st.builds(Signalled, ids, st.booleans(), numbers),
    st.builds(Exited, ids, numbers, numbers, st.booleans()),
)


@given(records)
def test_a_decoded_record_is_the_encoded_one(record: Record) -> None:
    assert decode(encode(record)) == record


@given(st.binary(max_size=200))
def test_random_bytes_are_a_record_or_a_record_error(data: bytes) -> None:
    try:
        record = decode(data)
    except RecordError:
        return
    assert decode(encode(record)) == record


@given(records, st.data())
def test_a_damaged_record_is_a_record_or_a_record_error(record: Record, data: st.DataObject) -> None:
    damaged = bytearray(encode(record))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(damaged))
    except RecordError:
        return
    assert decode(encode(found)) == found


@pytest.mark.parametrize(
    "record",
    [
        SpawnRequest(1, [b"a\0b"], [], b"/"),
        SpawnRequest(1, [b"a"], [b"A=\0"], b"/"),
        SpawnRequest(1, [b"a"], [], b"/\0"),
        SpawnRequest(1, [b"a"], [], b"/", arg0=b"\0"),
        Failed(1, STAGE_EXEC, 2, 0, [b"\0"]),
    ],
    ids=repr,
)
def test_a_string_with_nul_is_refused(record: Record) -> None:
    with pytest.raises(RecordError, match="NUL"):
        encode(record)


def test_a_number_out_of_range_is_refused() -> None:
    with pytest.raises(RecordError, match="out of range"):
        encode(Started(1, 2**63))


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(RecordError, match="is no record"):
        encode(Record())


def test_an_empty_arg0_differs_from_none() -> None:
    assert decode(encode(SpawnRequest(1, [b"a"], [], b"/", arg0=b""))) != SpawnRequest(1, [b"a"], [], b"/")


def test_records_of_different_kinds_differ() -> None:
    assert Started(1, 2) != SignalRequest(1, 2, 0)
    assert len({Started(1, 2), Started(1, 2), Started(1, 3)}) == 2


def test_a_record_prints_its_fields() -> None:
    assert repr(Started(1, 2)) == "Started(pid=2, request_id=1)"


@pytest.mark.parametrize("tail", [b"", b"\0\0\0", b"\0\0\0\0", b"\xff\0\0\0", b"\xff\xff\xff\xff"])
def test_a_supervision_that_is_cut_is_refused(tail: bytes) -> None:
    head = bytearray(encode(SpawnRequest(1, [b"a"], [], b"/", supervision=b"s")))
    with pytest.raises(RecordError):
        decode(bytes(head[: len(head) - 5]) + tail)


def test_a_request_with_an_unknown_flag_is_refused() -> None:
    data = bytearray(encode(SpawnRequest(1, [b"a"], [], b"/")))
    data[1] |= 128
    with pytest.raises(RecordError):
        decode(bytes(data))
