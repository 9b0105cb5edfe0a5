"""The records between server and file worker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.sandbox.files import worker_records as records
from execserver.sandbox.files.worker_records import RecordError

IDS = st.integers(0, 2**64 - 1)
PATHS = st.binary(max_size=200).filter(lambda path: b"\0" not in path).map(lambda path: b"/" + path)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
U32 = st.integers(0, 2**32 - 1)
REQUESTS = st.builds(
    records.Request,
    IDS,
    st.sampled_from([n for n in range(records.READ, records.WALK + 1) if n != records.COPY]),
    PATHS,
    st.integers(0, 15),
    limits=st.tuples(U32, U32, U32),
) | st.builds(records.Request, IDS, st.just(records.COPY), PATHS, st.integers(0, 15), PATHS)
SIZES = st.integers(0, 2**63)
REPLIES = st.one_of(
    st.builds(records.Done, IDS, st.booleans()),
    st.builds(records.Progress, IDS),
    st.builds(records.Metadata, IDS, st.tuples(st.booleans(), st.booleans(), st.booleans(), SIZES, SIZES)),
    st.builds(records.Path, IDS, PATHS),
    st.builds(records.Failed, IDS, st.integers(1, 200), PATHS | st.just(b""), st.integers(0, 3)),
    st.builds(records.Refused, IDS, st.sampled_from([-32600, -32603, -32004]), NAMES),
    st.builds(records.Entries, IDS, st.lists(st.tuples(NAMES, st.booleans(), st.booleans()))),
    st.builds(
        records.Walked,
        IDS,
        st.lists(st.tuples(NAMES, st.booleans())),
        st.lists(st.tuples(NAMES, NAMES)),
        st.booleans(),
    ),
)


def fields(record: object) -> list[object]:
    return [type(record), *(getattr(record, name) for name in type(record).__slots__)]  # type: ignore[attr-defined]


@given(REQUESTS)
def test_requests_arrive_as_they_were_sent(request: records.Request) -> None:
    assert fields(records.decode_request(records.encode_request(request))) == fields(request)


@given(REPLIES)
def test_replies_arrive_as_they_were_sent(reply: records.Reply) -> None:
    assert fields(records.decode_reply(records.encode_reply(reply))) == fields(reply)


@given(st.binary(max_size=120))
def test_any_bytes_are_a_record_or_refused(data: bytes) -> None:
    for decode in (records.decode_request, records.decode_reply):
        try:
            decode(data)
        except RecordError:
            pass


@given(REQUESTS, st.data())
def test_a_damaged_request_is_refused_or_is_another_request(
    request: records.Request, data: st.DataObject
) -> None:
    damaged = bytearray(records.encode_request(request))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = records.decode_request(bytes(damaged))
    except RecordError:
        return
    assert found.path.startswith(b"/")
    assert bool(found.target) == (found.operation in records._WITH_TARGET)


@given(REPLIES, st.data())
def test_a_damaged_reply_is_refused_or_is_another_reply(reply: records.Reply, data: st.DataObject) -> None:
    damaged = bytearray(records.encode_reply(reply))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        records.decode_reply(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    except RecordError:
        pass


@pytest.mark.parametrize(
    "request_",
    [
        records.Request(1, records.READ, b"relative"),
        records.Request(1, records.READ, b"/a\0b"),
        records.Request(1, records.READ, b""),
        records.Request(1, records.COPY, b"/a"),
        records.Request(1, records.RENAME, b"/a"),
        records.Request(1, records.CHMOD, b"/a", target=b"/b"),
        records.Request(1, records.COPY, b"/a", target=b"b"),
        records.Request(1, records.READ, b"/a", target=b"/b"),
    ],
)
def test_a_request_without_proper_paths_is_refused(request_: records.Request) -> None:
    with pytest.raises(RecordError):
        records.decode_request(records.encode_request(request_))


@pytest.mark.parametrize(
    "request_",
    [
        records.Request(1, records.READ, b"/" * 4096),
        records.Request(1, 0, b"/a"),
        records.Request(1, records.OPEN_FOLDER + 1, b"/a"),
        records.Request(-1, records.READ, b"/a"),
        records.Request(1, records.WALK, b"/a", limits=(2**32, 0, 0)),
    ],
)
def test_what_does_not_fit_a_request_is_not_sent(request_: records.Request) -> None:
    with pytest.raises(RecordError):
        records.encode_request(request_)


def test_a_text_that_holds_the_separator_is_not_sent() -> None:
    with pytest.raises(RecordError):
        records.encode_reply(records.Entries(1, [("a\0b", False, True)]))


def test_a_number_out_of_range_is_not_sent() -> None:
    with pytest.raises(RecordError):
        records.encode_reply(records.Metadata(1, (False, True, False, 2**64, 0)))


def test_the_number_of_a_request_stands_where_the_channel_looks_for_it() -> None:
    assert records.encode_request(records.Request(0x0102, records.READ, b"/a"))[8:10] == b"\x02\x01"
    assert records.encode_reply(records.Done(0x0102))[8:10] == b"\x02\x01"
