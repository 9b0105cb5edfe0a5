"""A policy as bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.rules import policy_record
from execserver.rules.policy import ALLOW, FORBIDDEN, PROMPT, HostExecutable, Policy, Rule
from execserver.rules.policy_record import PolicyRecordError, decode_policy, encode_policy

TEXTS = st.one_of(st.text(), st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")))
RULES = st.builds(
    Rule,
    st.lists(st.lists(TEXTS, min_size=1, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple),
    st.sampled_from([ALLOW, PROMPT, FORBIDDEN]),
    TEXTS,
    st.one_of(st.none(), TEXTS),
)
EXECUTABLES = st.builds(HostExecutable, TEXTS, st.lists(TEXTS, max_size=3).map(tuple))
POLICIES = st.builds(Policy, st.lists(RULES, max_size=4), st.lists(EXECUTABLES, max_size=3))

POLICY = Policy(
    [
        Rule((("git",), ("fetch", "pull")), ALLOW, "/a.rules:1"),
        Rule((("rm",),), FORBIDDEN, "/a.rules:2", "no"),
    ],
    [HostExecutable("git", ("/usr/bin/git",))],
)


@given(POLICIES)
def test_it_comes_back_equal(policy: Policy) -> None:
    assert decode_policy(encode_policy(policy)) == policy


def test_every_cut_is_noticed() -> None:
    data = encode_policy(POLICY)
    for length in range(len(data)):
        with pytest.raises(PolicyRecordError):
            decode_policy(data[:length])


def test_nothing_may_follow() -> None:
    data = encode_policy(POLICY)
    with pytest.raises(PolicyRecordError, match="other lengths"):
        decode_policy(data + b"\0")
    # One text more than the rules and programs use, with its length at the end of the lengths.
    head, numbers, texts = struct.unpack_from("<6sII", data)
    start = 14 + 4 * (numbers + texts)
    longer = struct.pack("<6sII", head, numbers, texts + 1) + data[14:start] + bytes(4) + data[start:]
    with pytest.raises(PolicyRecordError, match="follows"):
        decode_policy(longer)


@given(st.data())
def test_other_bytes_are_another_policy_or_an_error(data: st.DataObject) -> None:
    record = bytearray(encode_policy(POLICY))
    for place in data.draw(st.lists(st.integers(0, len(record) - 1), min_size=1, max_size=3)):
        record[place] = data.draw(st.integers(0, 255))
    try:
        policy = decode_policy(bytes(record))
    except PolicyRecordError:
        return
    assert encode_policy(policy) == bytes(record)


@pytest.mark.parametrize(
    "rule",
    [
        Rule((), ALLOW, ""),
        Rule(((),), ALLOW, ""),
        Rule((("a",),), FORBIDDEN + 1, ""),
    ],
)
def test_a_rule_that_cannot_be_is_refused(rule: Rule) -> None:
    forged = Policy.__new__(Policy)
    forged.rules, forged.executables = (rule,), ()
    data = encode_policy(forged)
    with pytest.raises(PolicyRecordError):
        decode_policy(data)


def test_what_is_neither_text_nor_bytes_is_refused() -> None:
    with pytest.raises(PolicyRecordError, match="neither text nor bytes"):
        encode_policy(Policy([Rule((("\ud800",),), ALLOW, "")]))


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_policy(POLICY)
    monkeypatch.setattr(policy_record, "MAX_POLICY_BYTES", len(data) - 1)
    with pytest.raises(PolicyRecordError, match="more than"):
        encode_policy(POLICY)
    with pytest.raises(PolicyRecordError):
        decode_policy(data)
