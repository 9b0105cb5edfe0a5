from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.sandbox import plan as words
from execserver.sandbox import plan_record
from execserver.sandbox.plan import Missing, Mount, SandboxPlan
from execserver.sandbox.plan_record import PlanRecordError, decode_plan, encode_plan
from tests.sandbox.policies import WORKSPACE, plan
from tests.support.fake_host import FakeHost

_paths = st.binary(max_size=20).map(lambda name: b"/" + name.replace(b"\0", b""))
_identities = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
_binds = st.builds(
    lambda kind, path, identity: Mount(kind, path, path, identity),
    st.sampled_from([words.READ, words.WRITE]),
    _paths,
    st.none() | _identities,
)
_masks = st.builds(
    lambda kind, path, identity: Mount(kind, path, b"", identity),
    st.sampled_from([words.HIDDEN_DIRECTORY, words.HIDDEN_FILE, words.PASSAGE]),
    _paths,
    st.none() | _identities,
)
_links = st.builds(lambda path, text: Mount(words.LINK, path, text), _paths, st.binary(max_size=9))
_many_paths = st.lists(_paths, max_size=3).map(tuple)
plans = st.builds(
    SandboxPlan,
    st.sampled_from([words.ROOT_HOST, words.ROOT_READ_ONLY, words.ROOT_EMPTY, words.ROOT_WRITABLE]),
    mounts=st.lists(st.one_of(_binds, _masks, _links), max_size=4).map(tuple),
    missing=st.lists(st.builds(Missing, _paths, _identities, st.booleans(), st.booleans()), max_size=3).map(
        tuple
    ),
    globs=_many_paths,
    network=st.sampled_from([words.NETWORK_HOST, words.NETWORK_NONE, words.NETWORK_PROXY]),
    syscall_filter=st.sampled_from(
        [words.FILTER_NONE, words.FILTER_OPEN, words.FILTER_RESTRICTED, words.FILTER_PROXY_ROUTED]
    ),
    writable=_many_paths,
    readable=_many_paths,
    read_only=_many_paths,
    denied=_many_paths,
)


@given(plans)
def test_a_plan_comes_back_as_it_was(made: SandboxPlan) -> None:
    assert decode_plan(encode_plan(made)) == made


@given(plans, st.data())
def test_damaged_bytes_are_refused_or_another_plan_but_nothing_else(
    made: SandboxPlan, data: st.DataObject
) -> None:
    record = bytearray(encode_plan(made))
    at = data.draw(st.integers(0, len(record) - 1))
    record[at] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_plan(bytes(record))
    except PlanRecordError:
        return
    assert encode_plan(decoded) == bytes(record)


def test_every_part_of_a_record_is_needed_and_nothing_may_follow() -> None:
    record = encode_plan(plan(FakeHost({"/ws": "dir", "/tmp": "dir"}), *WORKSPACE))
    for length in range(len(record)):
        with pytest.raises(PlanRecordError):
            decode_plan(record[:length])
    with pytest.raises(PlanRecordError, match="something follows the plan"):
        decode_plan(record + b"\0")


@given(st.binary(max_size=60))
def test_random_bytes_are_no_plan(record: bytes) -> None:
    with pytest.raises(PlanRecordError):
        decode_plan(record)


@pytest.mark.parametrize("path", [b"", b"relative", b"/with\0nul"])
def test_what_is_no_absolute_path_is_refused(path: bytes) -> None:
    record = encode_plan(SandboxPlan(words.ROOT_EMPTY, writable=(path,)))
    with pytest.raises(PlanRecordError, match="not an absolute path"):
        decode_plan(record)


def test_sizes_are_bounded_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    long = SandboxPlan(words.ROOT_EMPTY, globs=(b"/" + b"x" * plan_record.MAX_TEXT_BYTES,))
    with pytest.raises(PlanRecordError, match="a text is too long"):
        encode_plan(long)
    many = SandboxPlan(words.ROOT_EMPTY, denied=(b"/x",) * (plan_record.MAX_ITEMS + 1))
    with pytest.raises(PlanRecordError, match="too many items"):
        encode_plan(many)
    small = SandboxPlan(words.ROOT_EMPTY, denied=(b"/" + b"x" * 100,) * 3)
    record = encode_plan(small)
    monkeypatch.setattr(plan_record, "MAX_PLAN_BYTES", 100)
    with pytest.raises(PlanRecordError, match="the plan is too large"):
        encode_plan(small)
    with pytest.raises(PlanRecordError, match="the record is too large"):
        decode_plan(record)
    monkeypatch.undo()
    monkeypatch.setattr(plan_record, "MAX_TEXT_BYTES", 10)
    with pytest.raises(PlanRecordError, match="a text is too long"):
        decode_plan(record)
    monkeypatch.setattr(plan_record, "MAX_ITEMS", 2)
    with pytest.raises(PlanRecordError, match="too many items"):
        decode_plan(record)
