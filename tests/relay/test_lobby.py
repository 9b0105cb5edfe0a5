"""Who must go for whom before an upgrade."""

from __future__ import annotations

import random

from execserver.relay.lobby import Lobby


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
        self.lobby = Lobby(places, lambda: self.links)

    def enter(self, name: str) -> Guest:
        guest = Guest(name, self.gone)
        self.lobby.enter(guest)
        return guest

    def known(self, name: str) -> Guest:
        guest = self.enter(name)
        assert self.lobby.recognize(guest, True)
        return guest


def test_the_oldest_stranger_goes_when_their_share_is_used_up() -> None:
    scene = Scene(400)
    for number in range(102):
        scene.enter(str(number))
    assert scene.gone == ["0", "1"]
    assert len(scene.lobby) == 100


def test_strangers_get_what_is_free_and_a_few_places_at_least() -> None:
    scene = Scene(1000)
    scene.links = 900
    for number in range(101):
        scene.enter(str(number))
    assert scene.gone == ["0"]
    scene.links = 1000
    scene.enter("last")
    assert len(scene.lobby) == 64


def test_the_known_are_not_disturbed_by_strangers() -> None:
    scene = Scene(10)
    busy, resting = scene.known("busy"), scene.known("resting")
    scene.lobby.rest(resting)
    for number in range(100):
        scene.enter(str(number))
    assert {"busy", "resting"}.isdisjoint(scene.gone)
    scene.lobby.leave(busy)
    scene.lobby.leave(resting)
    assert len(scene.lobby) == 64


def test_a_known_one_that_rests_makes_room_for_one_that_asks() -> None:
    scene = Scene(2)
    first, second = scene.known("first"), scene.known("second")
    scene.lobby.rest(second)
    scene.lobby.rest(first)
    scene.known("third")
    assert scene.gone == ["second"]
    assert scene.lobby.recognize(first, True)
    late = scene.enter("late")
    assert not scene.lobby.recognize(late, True)
    assert scene.gone == ["second"]
    scene.lobby.leave(first)
    assert scene.lobby.recognize(late, True)


def test_one_that_does_not_show_its_token_again_is_a_stranger_again() -> None:
    scene = Scene(1)
    guest = scene.known("guest")
    scene.lobby.rest(guest)
    assert scene.lobby.recognize(guest, False)
    scene.known("other")
    assert scene.gone == []


def test_without_descriptors_strangers_go_first_and_the_busy_never() -> None:
    scene = Scene(10)
    scene.known("busy")
    scene.lobby.rest(scene.known("resting"))
    scene.enter("stranger")
    assert [scene.lobby.make_room() for _ in range(3)] == [True, True, False]
    assert scene.gone == ["stranger", "resting"]


def test_ten_thousand_lives_leave_nothing_and_no_place_is_counted_twice() -> None:
    """Random lives beside a model: who is there, and that nobody known goes for a stranger."""
    chance = random.Random(5)
    lobby = Lobby(300, lambda: 0)
    here: dict[_Life, str] = {}
    gone: list[_Life] = []
    for _ in range(10_000):
        before = dict(here)
        life = chance.choice(list(here)) if here and chance.random() < 0.6 else _Life(here, gone)
        act = chance.choice(("known", "stranger", "rest", "leave")) if life in here else "enter"
        if act == "enter":
            here[life] = "stranger"
            lobby.enter(life)
        elif act == "known":
            here[life] = "known" if lobby.recognize(life, True) else "stranger"
        elif act == "stranger":
            here[life] = "stranger"
            assert lobby.recognize(life, False)
        elif act == "rest":
            lobby.rest(life)
        else:
            lobby.leave(life)
            del here[life]
        ended = [each for each in before if each not in here and each is not life]
        assert all(before[each] == "stranger" for each in ended) or act == "known"
        assert len(lobby) == len(here)
        assert list(here.values()).count("known") <= 300
    for life in gone:
        lobby.leave(life)  # as each does that was turned away, sooner or later
    assert len(lobby) == len(here)
    for life in list(here):
        lobby.leave(life)
    assert len(lobby) == 0


class _Life:
    """A guest that leaves the model when it is turned away."""

    def __init__(self, here: dict[_Life, str], gone: list[_Life]) -> None:
        self._here = here
        self._gone = gone

    def turn_away(self) -> None:
        del self._here[self]
        self._gone.append(self)
