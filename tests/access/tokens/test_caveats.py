"""What caveats allow together: never more than any of them alone."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.access.identity import Grant
from execserver.access.tokens.caveats import (
    MAX_ROOTS,
    NOTHING_TAKEN,
    BadCaveat,
    Restrictions,
    caveats,
    intersection,
    restricted,
)

NAMES = st.sampled_from([b"a", b"b", b"ab", b"a b", b"\xff"])
FOLDERS = st.lists(NAMES, max_size=3).map(lambda names: b"/" + b"/".join(names))
ONE = st.one_of(
    st.integers(0, 99).map(lambda until: caveats(until=until)),
    st.lists(FOLDERS, min_size=1, max_size=3).map(lambda roots: caveats(roots=roots)),
    st.just(caveats(read_only=True)),
    st.just(caveats(network=False)),
    st.sampled_from(["ci", "CI-2", "x_y"]).map(lambda label: caveats(label=label)),
)
SOME = st.lists(ONE, max_size=6).map(lambda given: [caveat for some in given for caveat in some])
PLACES = [b"/", *(b"/" + b"/".join(names) for names in itertools.product([b"a", b"b", b"ab"], repeat=2))]


def writable(left: Restrictions, place: bytes) -> bool:
    if left.read_only or left.roots is None:
        return not left.read_only
    return any((place + b"/").startswith(root.rstrip(b"/") + b"/") for root in left.roots)


def allows(left: Restrictions) -> tuple[set[bytes], bool, set[int]]:
    return (
        {place for place in PLACES if writable(left, place)},
        left.network,
        {second for second in range(100) if not left.expired(second)},
    )


def within(less: Restrictions, more: Restrictions) -> bool:
    (places, network, times), (wider_places, wider_network, wider_times) = allows(less), allows(more)
    return places <= wider_places and network <= wider_network and times <= wider_times


@given(SOME, SOME)
def test_no_further_caveat_ever_widens(before: list[str], after: list[str]) -> None:
    whole, first, rest = restricted([*before, *after]), restricted(before), restricted(after)
    assert within(whole, first)
    assert within(whole, rest)
    # And no narrower than both: what each allows is allowed.
    (places, network, times), (others, other_network, other_times) = allows(first), allows(rest)
    assert allows(whole) == (places & others, network and other_network, times & other_times)


@given(SOME)
def test_order_and_repetition_change_nothing_but_the_labels(some: list[str]) -> None:
    once = restricted(some)
    assert restricted(some[::-1])._replace(labels=()) == once._replace(labels=())
    assert restricted([*some, *some])._replace(labels=()) == once._replace(labels=())


@given(st.lists(FOLDERS, max_size=4), st.lists(FOLDERS, max_size=4))
def test_an_intersection_of_folders_holds_what_both_hold(one: list[bytes], other: list[bytes]) -> None:
    both = intersection(one, other)
    for place in [*one, *other, *PLACES]:
        each = [writable(Restrictions(roots=tuple(roots)), place) for roots in (one, other, both)]
        assert each[2] == (each[0] and each[1])
    assert len(intersection(both, both)) == len(both)


def test_a_folder_of_a_similar_name_is_another_one() -> None:
    assert intersection([b"/srv"], [b"/workshop", b"/srv-2"]) == ()
    assert intersection([b"/srv"], [b"/srv/a", b"/srv"]) == (b"/srv",)
    assert intersection([b"/"], [b"/srv/a"]) == (b"/srv/a",)


def test_roots_without_anything_in_common_leave_nothing_writable() -> None:
    left = restricted([*caveats(roots=[b"/a"]), *caveats(roots=[b"/b"])])
    assert left.roots == ()
    assert left.grant() == Grant(roots=())


def test_a_token_without_caveats_takes_nothing() -> None:
    assert restricted([]) == NOTHING_TAKEN
    assert NOTHING_TAKEN.grant() == Grant()
    assert not NOTHING_TAKEN.expired(1e18)


def test_the_time_is_over_from_the_very_second() -> None:
    left = restricted(["u-100"])
    assert [left.expired(now) for now in (99, 99.999, 100, 100.001)] == [False, False, True, True]
    assert restricted(["u-100", "u-200"]).until == 100


def test_paths_that_are_not_utf8_come_through() -> None:
    assert restricted(caveats(roots=[b"/a\xff"])).grant().roots == ("/a\udcff",)


ILL = [
    *("", "x", "R", "r-", "n-1", "rr", " r", "r\n", "t-5"),
    *("u-", "u--1", "u-01", "u-1e3", "u- 1", "u-1\n", "u-5 ", "u-\u0661", "u-9999999999999"),
    *("l-", "l-a.b", "l-a/b", "l-" + "a" * 65, "d-", "d-!", "d-L", "d-L2E="),
]


@pytest.mark.parametrize("caveat", ILL)
def test_a_caveat_that_is_not_understood_is_refused(caveat: str) -> None:
    with pytest.raises(BadCaveat):
        restricted(["r", caveat])


@pytest.mark.parametrize("root", [b"", b"a", b"./a", b"//", b"/a/", b"/a//b", b"/a/..", b"/./a", b"/a\0/b"])
def test_a_root_has_one_spelling(root: bytes) -> None:
    with pytest.raises(BadCaveat):
        caveats(roots=[root])


def test_what_no_caveat_can_say_is_refused() -> None:
    for roots in ([], [b"/%d" % number for number in range(MAX_ROOTS + 1)], [b"/" + b"a" * 4096]):
        with pytest.raises(BadCaveat):
            caveats(roots=roots)
    for label in ("", "a b", "ä", "a.b"):
        with pytest.raises(BadCaveat):
            caveats(label=label)
    with pytest.raises(BadCaveat):
        caveats(until=-1)


def test_the_number_of_roots_does_not_grow_with_the_caveats() -> None:
    wide = caveats(roots=[b"/%d" % number for number in range(MAX_ROOTS)])
    deep = [caveats(roots=[b"/%d/%d" % (top, name) for name in range(2)])[0] for top in range(2)]
    assert restricted([*wide, deep[0]]).roots == (b"/0/0", b"/0/1")
    many = [b"/%d" % number for number in range(MAX_ROOTS - 1)]
    split = [*(root for root in many[1:]), b"/0/a", b"/0/b"]
    assert len(restricted(caveats(roots=split)).roots or ()) == MAX_ROOTS
    # One list divides the folders of the other, and that one its: together they would be too many.
    one = [b"/a/%d" % number for number in range(MAX_ROOTS - 1)] + [b"/b"]
    other = [b"/b/%d" % number for number in range(MAX_ROOTS - 1)] + [b"/a"]
    with pytest.raises(BadCaveat):
        restricted([*caveats(roots=one), *caveats(roots=other)])
