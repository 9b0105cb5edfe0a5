"""Which handshakes the executor lets in, which it refuses, and how many it tries at once."""

from __future__ import annotations

from collections.abc import Iterator

import gevent.event
import pytest

from execserver.remote import streams
from execserver.remote.streams import FAILURES, MAX_ACTIVE, MAX_PENDING, PAUSE_S
from execserver.wire.noise import EntropyAhead, RejectedByRegistry
from execserver.wire.noise_keys import PublicKeys, StaticKeys
from execserver.wire.relay_frames import (
    Data,
    Handshake,
    Reset,
    Resume,
)
from tests.remote.scene import HARNESS, Harness, Scene, never_answers, rejects, says_no, works


@pytest.fixture(params=[True, False], ids=["told", "waited for"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A table with a websocket; the registry's answers come in both ways."""
    scene = Scene(told=request.param)
    yield scene
    scene.close()


def test_a_harness_is_let_in_after_the_registry_said_yes(scene: Scene) -> None:
    scene.take("a", Resume(0))
    harness = Harness(scene, "a").open()
    assert scene.asked == [("reg-1", HARNESS.public, "let-me-in", "a")]
    assert works(scene, harness)
    assert works(scene, harness, b"x" * 200_000)
    assert scene.table.count == 1


def test_nothing_is_written_and_nothing_begins_before_the_registry_said_yes(scene: Scene) -> None:
    let_in = gevent.event.Event()
    scene.judge = lambda authorization: let_in.wait() and None
    harness = Harness(scene, "a").begin()
    assert scene.is_silent()
    assert (scene.asked, scene.clients, scene.table.count) == (
        [("reg-1", HARNESS.public, "let-me-in", "a")],
        {},
        0,
    )
    let_in.set()
    harness.finish()
    assert works(scene, harness)


def test_a_harness_with_a_key_that_is_none_is_refused_even_if_the_registry_knows_it(scene: Scene) -> None:
    bad = StaticKeys.generate()
    bad.public = PublicKeys(bad.public.x25519, b"\xff" * 1184)
    Harness(scene, "a", keys=bad).begin()
    assert scene.is_reset("a")
    assert (scene.clients, scene.table.count) == ({}, 0)
    scene.judge = rejects
    Harness(scene, "a", keys=bad).begin()
    assert scene.is_reset("a")


def test_the_registry_is_asked_before_any_greenlet_has_its_turn(scene: Scene) -> None:
    harness = Harness(scene, "a").begin()
    assert len(scene.asked) == 1
    harness.finish()
    assert scene.questions[0].is_closed


@pytest.mark.parametrize("has_turn", [True, False])
def test_a_question_about_a_harness_that_left_is_given_up(scene: Scene, *, has_turn: bool) -> None:
    scene.judge = never_answers
    Harness(scene, "a").begin()
    if has_turn:
        gevent.sleep(0)
    scene.take("a", Reset("whatever"))
    assert scene.is_silent()
    assert scene.questions[0].is_closed
    assert scene.clients == {}


def test_a_handshake_with_the_id_of_a_stream_is_reset_and_the_stream_goes_on(scene: Scene) -> None:
    harness = Harness(scene, "a").open()
    Harness(scene, "a").begin()
    assert scene.is_reset("a")
    assert works(scene, harness)


def test_a_second_handshake_cancels_the_first(scene: Scene) -> None:
    scene.judge = never_answers
    Harness(scene, "a").begin()
    gevent.sleep(0)
    Harness(scene, "a").begin()
    assert scene.is_reset("a")
    assert scene.is_silent()
    scene.judge = lambda authorization: None
    assert works(scene, Harness(scene, "a").open())


def test_streams_are_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (MAX_ACTIVE, MAX_PENDING) == (128, 32)
    monkeypatch.setattr(streams, "MAX_ACTIVE", 3)
    running = [Harness(scene, name).open() for name in "abc"]
    for _ in range(2 * FAILURES):
        Harness(scene, "d").begin()
        assert scene.is_reset("d")
    scene.take("a", Reset("bye"))
    assert works(scene, Harness(scene, "d").open())  # so that was no failure
    assert all(works(scene, each) for each in running[1:])


def test_questions_to_the_registry_are_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_PENDING", 3)
    scene.judge = never_answers
    for name in "abc":
        Harness(scene, name).begin()
    for _ in range(2 * FAILURES):
        Harness(scene, "d").begin()
        assert scene.is_reset("d")
    scene.take("a", Reset("bye"))
    scene.judge = lambda authorization: None
    assert works(scene, Harness(scene, "d").open())


def test_a_handshake_for_another_registration_fails(scene: Scene) -> None:
    harness = Harness(scene, "a")
    scene.table.registration = scene.table.registration._replace(registration_id="reg-2")
    harness.begin()
    assert scene.is_reset("a")
    assert scene.asked == []
    scene.take("b", Handshake(b"x" * 3568))
    assert scene.is_reset("b")


@pytest.mark.parametrize("authorization", [b"\xff", b"x" * 4097])
def test_an_authorization_that_cannot_be_one_is_not_asked_about(scene: Scene, authorization: bytes) -> None:
    if len(authorization) > 4096:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("execserver.wire.noise.MAX_AUTHORIZATION_BYTES", 10_000)
            Harness(scene, "a", authorization).begin()
    else:
        Harness(scene, "a", authorization).begin()
    assert scene.is_reset("a")
    assert scene.asked == []


def test_the_longest_authorization_is_asked_about(scene: Scene) -> None:
    assert works(scene, Harness(scene, "a", b"x" * 4096).open())
    assert scene.asked[0][2] == "x" * 4096


def test_a_harness_that_the_registry_refuses_is_reset(scene: Scene) -> None:
    scene.judge = says_no
    Harness(scene, "a").begin()
    assert scene.is_reset("a")
    assert scene.table.count == 0


def test_a_registry_that_does_not_answer_refuses(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "VALIDATION_S", 0.05)
    scene.judge = never_answers
    Harness(scene, "a").begin()
    assert scene.is_reset("a")


def test_others_go_on_while_the_registry_is_asked(scene: Scene) -> None:
    running = Harness(scene, "a").open()
    scene.judge = never_answers
    Harness(scene, "b").begin()
    gevent.sleep(0)
    assert works(scene, running)


def test_data_before_the_answer_cancels_the_handshake(scene: Scene) -> None:
    scene.judge = never_answers
    Harness(scene, "a").begin()
    gevent.sleep(0)
    scene.take("a", Data(0, b"x" * 32))
    assert scene.is_reset("a")
    assert scene.is_silent()


def test_a_reset_ends_a_handshake_without_an_answer(scene: Scene) -> None:
    scene.judge = never_answers
    Harness(scene, "a").begin()
    gevent.sleep(0)
    scene.take("a", Reset("whatever"))
    assert scene.is_silent()


def test_eight_failures_stop_new_handshakes_for_a_while(scene: Scene) -> None:
    running = Harness(scene, "a").open()
    asked = len(scene.asked)
    scene.judge = says_no
    for _ in range(FAILURES):
        Harness(scene, "b").begin()
        assert scene.is_reset("b")
    assert len(scene.asked) == asked + FAILURES
    scene.judge = lambda authorization: None
    Harness(scene, "b").begin()
    assert scene.is_reset("b")
    assert len(scene.asked) == asked + FAILURES  # refused without asking
    assert works(scene, running)
    scene.clock.now += PAUSE_S
    assert works(scene, Harness(scene, "b").open())


def test_a_harness_whose_authentication_is_rejected_is_told_inside_the_handshake(scene: Scene) -> None:
    scene.judge = rejects
    for _ in range(2):  # a new handshake with the same id is judged anew
        harness = Harness(scene, "a")
        with pytest.raises(RejectedByRegistry):
            harness.open()
    assert scene.table.count == 0
    scene.take("a", Data(0, b"x" * 40))
    assert scene.is_reset("a")
    scene.judge = lambda authorization: None
    assert works(scene, Harness(scene, "a").open())


def test_a_rejection_counts_as_a_failure(scene: Scene) -> None:
    scene.judge = rejects
    for _ in range(FAILURES):
        with pytest.raises(RejectedByRegistry):
            Harness(scene, "a").open()
    Harness(scene, "a").begin()
    assert scene.is_reset("a")
    assert len(scene.asked) == FAILURES


def test_a_success_does_not_reduce_the_failures_but_a_new_websocket_does(scene: Scene) -> None:
    for round_ in range(2):
        scene.judge = says_no
        for _ in range(FAILURES - 1):
            Harness(scene, "b").begin()
            assert scene.is_reset("b")
        scene.judge = lambda authorization: None
        Harness(scene, f"ok{round_}").open()
        if round_ == 0:
            scene.table.detach()
            scene.attach()
    scene.judge = says_no
    Harness(scene, "b").begin()
    assert scene.is_reset("b")
    scene.judge = lambda authorization: None
    Harness(scene, "c").begin()
    assert scene.is_reset("c")


def test_keys_that_are_made_ahead_are_for_one_handshake() -> None:
    entropy = EntropyAhead()
    entropy.make_ahead()
    ready = entropy.spare
    assert ready is not None
    entropy.make_ahead()
    assert entropy.spare is ready
    first, second = entropy.ephemeral(), entropy.ephemeral()
    assert first is ready
    assert second is not ready
