"""Queries in old output are left out, wherever they are cut; everything else stays as it is."""

from __future__ import annotations

import random

import pytest

from execserver.box.commands.past import Past

QUERIES = [
    b"\x05",
    b"\x1bZ",
    b"\x1b[c",
    b"\x1b[0c",
    b"\x1b[>c",
    b"\x1b[=0c",
    b"\x1b[5n",
    b"\x1b[6n",
    b"\x1b[?6n",
    b"\x1b[?996n",
    b"\x1b[>q",
    b"\x1b[>0q",
    b"\x1b[?u",
    b"\x1b[1x",
    b"\x1b[18t",
    b"\x1b[11;0t",
    b"\x1b[?2026$p",
    b"\x1b[4$p",
    b"\x1b[1$w",
    b"\x1b[1;1;1;1;2;2*y",
    b"\x1b]10;?\x07",
    b"\x1b]4;7;?\x1b\\",
    b"\x1b]52;c;?\x07",
    b"\x1bP+q544e\x1b\\",
    b"\x1bP$qm\x1b\\",
]
OTHERS = [
    b"text ?;\xe2\x96\xbd",
    b"\r\n",
    b"\x1b[m",
    b"\x1b[2;16H",
    b"\x1b[?1049h",
    b"\x1b[>4;2m",
    b"\x1b[>4n",  # switches something off
    b"\x1b[?5c",  # the cursor of the Linux console
    b"\x1b[22;0;0t",
    b"\x1b[2 q",
    b"\x1b[u",
    b"\x1b[<1u",
    b"\x1b[!p",
    b"\x1b]0;what?\x07",
    b"\x1b]8;;http://x/?\x1b\\",
    b"\x1bPq#0;2;0;0;0\x1b\\",
    b"\x1bM",
]


@pytest.mark.parametrize("query", QUERIES, ids=ascii)
def test_a_query_is_left_out_wherever_it_is_cut(query: bytes) -> None:
    for at in range(len(query) + 1):
        past = Past()
        shown = past.feed(b"a" + query[:at]) + past.feed(query[at:] + b"b")
        assert shown + past.rest() == b"ab"


def test_everything_else_stays_in_order() -> None:
    chance = random.Random(6)
    for _ in range(500):
        parts = [chance.choice(OTHERS + QUERIES) for _ in range(chance.randrange(30))]
        data, past, shown = b"".join(parts), Past(), b""
        while data:
            cut = chance.randrange(1, len(data) + 1)
            shown += past.feed(data[:cut])
            data = data[cut:]
        assert shown + past.rest() == b"".join(part for part in parts if part in OTHERS)


@pytest.mark.parametrize("begun", [b"\x1b]0;", b"\x1bP", b"\x1b[1"], ids=ascii)
def test_what_never_ends_is_not_held_for_ever(begun: bytes) -> None:
    past = Past()
    data = begun + b"1" * 10_000
    shown = b"".join(past.feed(data[at : at + 100]) for at in range(0, len(data), 100))
    assert len(past.rest()) <= 4096
    assert len(shown) >= 5000
