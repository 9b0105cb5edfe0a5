"""Who must go for whom before an upgrade."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import gevent
import pytest

from execserver.relay.admission import Admission
from execserver.relay.tokens import create
from tests.support.relay_stage import LIMITS, NAME, RelayStage, connected
from tests.support.waiting import wait_until


class Guest:
    """A guest that notes its end."""

    def __init__(self, name: str, gone: list[str]) -> None:
        self.name = name
        self.gone = gone

    def turn_away(self) -> None:
        self.gone.append(self.name)


class Scene:
    """A lobby whose guests have names; who was turned away is in `gone`, oldest first."""

    def __init__(self, places: int) -> None:
        self.gone: list[str] = []
        self.links = 0
        self.links_of: Counter[str] = Counter()
        self.admission = Admission(
            places, lambda: self.links + self.links_of.total(), self.links_of.__getitem__
        )

    def enter(self, name: str) -> Guest:
        guest = Guest(name, self.gone)
        self.admission.enter(guest)
        return guest

    def known(self, name: str, token: str = "t") -> Guest:
        guest = self.enter(name)
        assert self.admission.recognize(guest, token)
        return guest

    def is_refused(self, token: str) -> bool:
        guest = self.enter("refused")
        refused = not self.admission.recognize(guest, token)
        self.admission.leave(guest)
        return refused


def test_the_oldest_stranger_goes_when_their_share_is_used_up() -> None:
    scene = Scene(400)
    for number in range(102):
        scene.enter(str(number))
    assert scene.gone == ["0", "1"]
    assert len(scene.admission) == 100


def test_strangers_get_what_is_free_and_a_few_places_at_least() -> None:
    scene = Scene(1000)
    scene.links = 900
    for number in range(101):
        scene.enter(str(number))
    assert scene.gone == ["0"]
    scene.links = 1000
    scene.enter("last")
    assert len(scene.admission) == 64


def test_the_known_are_not_disturbed_by_strangers() -> None:
    scene = Scene(10)
    busy, resting = scene.known("busy"), scene.known("resting")
    scene.admission.rest(resting)
    for number in range(100):
        scene.enter(str(number))
    assert {"busy", "resting"}.isdisjoint(scene.gone)
    scene.admission.leave(busy)
    scene.admission.leave(resting)
    assert len(scene.admission) == 64


def test_a_known_one_that_rests_makes_room_for_one_that_asks() -> None:
    scene = Scene(2)
    first, second = scene.known("first"), scene.known("second")
    scene.admission.rest(second)
    scene.admission.rest(first)
    scene.known("third")
    assert scene.gone == ["second"]
    assert scene.admission.recognize(first, "t")
    late = scene.enter("late")
    assert not scene.admission.recognize(late, "t")
    assert scene.gone == ["second"]
    scene.admission.leave(first)
    assert scene.admission.recognize(late, "t")


def test_one_that_does_not_show_its_token_again_is_a_stranger_again() -> None:
    scene = Scene(1)
    guest = scene.known("guest")
    scene.admission.rest(guest)
    assert scene.admission.recognize(guest, None)
    scene.known("other")
    assert scene.gone == []


def test_without_descriptors_strangers_go_first_and_the_busy_never() -> None:
    scene = Scene(10)
    scene.known("busy")
    scene.admission.rest(scene.known("resting"))
    scene.enter("stranger")
    assert [scene.admission.make_room() for _ in range(3)] == [True, True, False]
    assert scene.gone == ["stranger", "resting"]


@pytest.mark.parametrize("links", [1, 150])
def test_a_token_gets_its_share_and_leaves_the_others_theirs(links: int) -> None:
    scene = Scene(800)
    scene.links_of["greedy"] = links
    for number in range(200 - links):
        scene.known(str(number), "greedy")
    assert scene.is_refused("greedy")
    for number in range(200):
        scene.known(str(number), "other")
    assert scene.is_refused("other")
    assert scene.gone == []
    scene.links_of["greedy"] -= 1
    assert not scene.is_refused("greedy")


def test_at_its_share_a_token_makes_room_of_its_own() -> None:
    scene = Scene(800)
    scene.admission.rest(scene.known("of somebody else", "other"))
    for number in range(200):
        scene.admission.rest(scene.known(str(number), "greedy"))
    assert scene.gone == []
    scene.known("one more", "greedy")
    scene.known("and one", "greedy")
    assert scene.gone == ["0", "1"]


def test_one_that_shows_another_token_counts_for_that_one() -> None:
    scene = Scene(512)
    guests = [scene.known(str(number), "first") for number in range(128)]
    assert scene.is_refused("first")
    assert scene.admission.recognize(guests[0], "second")
    assert not scene.is_refused("first")


def end(stage: RelayStage) -> None:
    """End a relay once it has noticed that nobody is there."""
    wait_until(lambda: not len(stage.admission), pause=gevent.sleep)
    stage.close()
    gevent.sleep(0)  # one turn, in which what was closed ends


def test_one_token_that_withholds_its_bodies_locks_nobody_else_out(tmp_path: Path) -> None:
    stage = RelayStage(tmp_path, LIMITS._replace(connections=160))
    book = tmp_path / "tokens.json"
    _, other = create(str(book), NAME, "both")
    stage.book.reload()
    held = []

    def head_of_a_call(token: str) -> bytes:
        sock = connected(stage.port)
        held.append(sock)
        sock.sendall(
            f"POST /cloud/environment/{NAME}/register HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            f"Authorization: Bearer {token}\r\nContent-Length: 2\r\n\r\n".encode()
        )
        return sock.recv(65536)

    try:
        asked = b"HTTP/1.1 100 \r\n\r\n"  # for the body: there is a place
        assert [head_of_a_call(stage.token) for _ in range(128)] == [asked] * 128
        refused = head_of_a_call(stage.token)
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1\r\n" in refused
        assert [head_of_a_call(other) for _ in range(32)] == [asked] * 32
    finally:
        for sock in held:
            sock.close()
        end(stage)


def test_websockets_that_are_not_let_go_count_for_their_token(tmp_path: Path) -> None:
    """Each takes the place of the one before, whose goodbye nobody answers."""
    stage = RelayStage(tmp_path, LIMITS._replace(close_timeout_s=600))
    first = stage.executor()
    token_id = stage.token.split("-")[1]
    ends = [first, stage.executor(), stage.executor()]
    assert stage.rendezvous.count_sockets_of(token_id) == stage.rendezvous.count_sockets() == 3
    for each in ends:
        each.drop()
    wait_until(lambda: not stage.rendezvous.count_sockets_of(token_id), pause=gevent.sleep)
    assert stage.rendezvous.count_sockets() == 0
    end(stage)


def test_ten_thousand_lives_leave_nothing_and_no_place_is_counted_twice() -> None:
    """Random lives beside a model: who is there, and that nobody known goes for a stranger.

    Upgraded connections come and go as well, but never more than there are places for.
    """
    chance = random.Random(5)
    links: Counter[str] = Counter()
    admission = Admission(300, links.total, links.__getitem__)
    tokens: dict[_Life, str] = {}
    here: dict[_Life, str] = {}
    gone: list[_Life] = []
    for _ in range(10_000):
        before = dict(here)
        life = chance.choice(list(here)) if here and chance.random() < 0.6 else _Life(here, gone)
        acts = ("known", "known", "upgrade", "stranger", "rest", "leave")
        act = chance.choice(acts) if life in here else "enter"
        if act == "enter":
            here[life] = "stranger"
            admission.enter(life)
        elif act == "known":
            token = tokens[life] = chance.choice("aaaab")
            here[life] = "known" if admission.recognize(life, token) else "stranger"
        elif act == "stranger":
            here[life] = "stranger"
            assert admission.recognize(life, None)
        elif act == "rest":
            admission.rest(life)
        else:
            if act == "upgrade" and here[life] == "known":
                links[tokens[life]] += 1
            elif links.total() and chance.random() < 0.5:
                links[chance.choice(list(links.elements()))] -= 1
            admission.leave(life)
            del here[life]
        ended = [each for each in before if each not in here and each is not life]
        assert all(before[each] == "stranger" for each in ended) or act == "known"
        assert len(admission) == len(here)
        known = Counter(tokens[each] for each, what in here.items() if what == "known") + links
        assert known.total() <= 300
        assert max(known.values(), default=0) <= 128
    for life in gone:
        admission.leave(life)  # as each does that was turned away, sooner or later
    assert len(admission) == len(here)
    for life in list(here):
        admission.leave(life)
    assert len(admission) == 0


class _Life:
    """A guest that leaves the model when it is turned away."""

    def __init__(self, here: dict[_Life, str], gone: list[_Life]) -> None:
        self._here = here
        self._gone = gone

    def turn_away(self) -> None:
        del self._here[self]
        self._gone.append(self)
