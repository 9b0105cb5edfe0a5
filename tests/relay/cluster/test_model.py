"""The rules of several nodes, explored: whatever is lost, delayed or repeated, an environment comes to rest.

Every state that a number of moves and some faults lead to is settled and looked at: the executor is
connected once, the engine says where, no other node holds it, and a harness gets there.  Longer courses with
more faults are drawn at random.  Last, each rule is broken in turn, and the model has to notice.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.relay.cluster import placing, residents
from execserver.relay.cluster.placing import Entry
from execserver.relay.cluster.presence import Presence
from execserver.relay.cluster.residents import Claim, Residents
from tests.conftest import LONG
from tests.relay.cluster import world as world_module
from tests.relay.cluster.settling import settle
from tests.relay.cluster.world import FAULTS, Move, World

MOVES = 10 if LONG else 6
BROKEN_MOVES = 6
COURSE_MOVES = 80
# Faults that together have a story: each set is explored with every order of them and of all that goes on.
STORIES = [
    {"kill": 1},
    {"cut": 1, "front_cut": 1},
    {"front_cut": 1, "unsubscribe": 1, "silent": 1},
    {"takeover": 1, "cut": 1},
    {"forget": 1, "wait": 1, "cut": 1},
    {"repeat": 1, "front_cut": 1},
    {"unheard": 1, "front_cut": 1},
    {"drop": 1, "front_cut": 1},
    {"drop": 1, "takeover": 1, "repeat": 1},
]


def connected(budget: dict[str, int], nodes: int = 2) -> World:
    """Return a world in which the first executor is connected to the first node, and the engine knows."""
    world = World({**dict.fromkeys(FAULTS, 0), **budget}, nodes)
    for move in (("register", "0", "n0"), ("arrive", "0", "n0"), ("steps", "n0")):
        world.do(move)
    return world


def explore(budget: dict[str, int], depth: int) -> int:
    """Settle every state up to a number of moves; return how many there are.  Fails with the course."""
    seen = {pickle.dumps(connected(budget))}
    waiting: deque[tuple[bytes, tuple[Move, ...]]] = deque((state, ()) for state in seen)
    while waiting:
        state, course = waiting.popleft()
        for move in list(pickle.loads(state).moves()):
            world: World = pickle.loads(state)
            world.do(move)
            following = pickle.dumps(world)
            if following in seen:
                continue
            seen.add(following)
            look_at(world, (*course, move))
            if len(course) + 1 < depth:
                waiting.append((following, (*course, move)))
    return len(seen)


def look_at(world: World, course: tuple[Move, ...]) -> None:
    """Settle a state that nothing else needs any more; fail with the course that led to it."""
    try:
        world.check()
        settle(world)
        world.check()
    except AssertionError as error:
        raise AssertionError(f"{error}\nafter {course}") from None


@pytest.mark.parametrize("story", STORIES, ids=" ".join)
def test_every_course_of_a_story_comes_to_rest(story: dict[str, int]) -> None:
    assert explore(story, MOVES) > 20


@given(st.lists(st.integers(0, 100), max_size=COURSE_MOVES))
def test_long_courses_with_many_faults_come_to_rest(choices: list[int]) -> None:
    world = connected(dict.fromkeys(FAULTS, 2), nodes=3)
    course: list[Move] = []
    for choice in choices:
        moves = list(world.moves())
        if not moves:
            break  # all faults are used up, and nothing is on its way
        course.append(moves[choice % len(moves)])
        world.do(course[-1])
        world.check()
    look_at(world, tuple(course))


def do_nothing(self: object, *rest: object) -> None:
    """Stand in for a rule: nothing follows."""


def is_never_recalled(*rest: object) -> Entry:
    """Stand in for `judge`: no executor is called back."""
    entry = placing.judge(*rest)  # type: ignore[arg-type]
    return Entry.WRONG_NODE if entry is Entry.RECALL else entry


def is_admitted_anywhere(*rest: object) -> Entry:
    """Stand in for `judge`: whoever has a credential comes in."""
    return Entry.ADMIT


def is_never_fresh(environment_id: str, presence: Presence, fresh: bool) -> Claim:
    """Stand in for `Claim`: the newest websocket does not override another one."""
    return Claim(environment_id, presence, False)


@pytest.mark.parametrize(
    ("owner", "rule", "broken", "story"),
    [
        (Residents, "all_again", do_nothing, {"front_cut": 1, "unsubscribe": 1}),
        (Residents, "failed", do_nothing, {"front_cut": 1, "unheard": 1}),
        (Residents, "_moved", do_nothing, {"front_cut": 1}),
        (Residents, "_recall", do_nothing, {"drop": 1}),
        (residents, "Claim", is_never_fresh, {"front_cut": 1}),
        (world_module, "judge", is_never_recalled, {"drop": 1}),
        (world_module, "judge", is_admitted_anywhere, {"drop": 1}),
    ],
)
def test_a_broken_rule_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    rule: str,
    broken: Callable[..., object],
    story: dict[str, int],
) -> None:
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(AssertionError):
        explore(story, BROKEN_MOVES)
