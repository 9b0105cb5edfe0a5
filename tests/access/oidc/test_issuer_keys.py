"""When a provider is asked, how often at most, and how long its keys count without an answer."""

from __future__ import annotations

import gevent
import pytest

from execserver.access.oidc.issuer_keys import FRESH_S, KEPT_S, MAX_WAITING, RETRY_S, IssuerKeys
from execserver.access.oidc.key_set import KeySet, read_key_set
from execserver.access.oidc.keys import NoKeys
from tests.support.oidc import ec_key, ed_key, key_set

FIRST, SECOND = ed_key("first"), ec_key("second")


class Double:
    """A provider and a clock, as a test sets them."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.asked = 0
        self.answer: KeySet | None = read_key_set(key_set(FIRST))
        self.pause_s = 0.0
        self.keys = IssuerKeys(self.fetch, lambda: self.now)

    def fetch(self) -> KeySet:
        self.asked += 1
        gevent.sleep(self.pause_s)
        if self.answer is None:
            raise NoKeys("it is down")
        return self.answer

    def has(self, kid: str, algorithm: str = "EdDSA") -> bool:
        return self.keys.find(kid, algorithm) is not None


def test_keys_are_asked_for_once_while_they_are_fresh() -> None:
    double = Double()
    for _ in range(100):
        assert double.has("first")
        double.now += FRESH_S / 101
    assert double.asked == 1
    double.now += FRESH_S
    assert double.has("first")
    assert double.asked == 2


def test_an_unknown_name_asks_again_and_not_too_often() -> None:
    double = Double()
    assert double.has("first")
    double.answer = read_key_set(key_set(SECOND))
    double.now += RETRY_S
    assert double.has("second", "ES256")  # rotated
    assert not double.has("first")
    for number in range(1000):
        assert not double.has(f"made-up-{number}")
    assert double.asked == 2
    double.now += RETRY_S
    assert not double.has("made-up")
    assert double.asked == 3


def test_a_provider_that_is_down_leaves_the_keys_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    double = Double()
    assert double.has("first")
    double.answer = None
    double.now += KEPT_S - 1
    assert double.has("first")
    assert "count for 1 s more" in caplog.text
    double.now += RETRY_S
    with pytest.raises(NoKeys):
        double.has("first")
    assert "nobody gets in" in caplog.text
    asked = double.asked
    with pytest.raises(NoKeys):
        double.has("first")
    assert double.asked == asked  # not with every token
    double.answer = read_key_set(key_set(FIRST))
    double.now += RETRY_S
    assert double.has("first")


def test_without_a_first_answer_nobody_gets_in() -> None:
    double = Double()
    double.answer = None
    for _ in range(3):
        with pytest.raises(NoKeys):
            double.has("first")
    assert double.asked == 1


def test_all_who_come_meanwhile_wait_for_one_answer_and_too_many_do_not() -> None:
    double = Double()
    double.pause_s = 0.05
    waiting = [gevent.spawn(double.has, "first") for _ in range(MAX_WAITING + 1)]
    gevent.sleep(0)
    with pytest.raises(NoKeys):
        double.has("first")
    gevent.joinall(waiting, timeout=20)
    assert all(each.value for each in waiting)
    assert double.asked == 1


def test_known_keys_wait_for_nobody_while_others_make_names_up() -> None:
    double = Double()
    assert double.has("first")
    double.now += RETRY_S
    double.pause_s = 0.05
    slow = gevent.spawn(double.has, "made-up")
    gevent.sleep(0)
    assert double.has("first")
    assert not slow.ready()
    slow.join(10)
    assert slow.value is False


def test_one_who_leaves_while_asking_holds_up_nobody() -> None:
    double = Double()
    double.pause_s = 30.0
    first = gevent.spawn(double.has, "first")
    gevent.sleep(0)
    second = gevent.spawn(double.has, "first")
    gevent.sleep(0)
    first.kill()
    second.join(10)
    assert isinstance(second.exception, NoKeys)
    double.now, double.pause_s = double.now + RETRY_S, 0.0
    assert double.has("first")
