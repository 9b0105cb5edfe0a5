"""What a node tells the engine of its executors, and what it does by the answers and messages."""

from __future__ import annotations

import pytest

from execserver.relay.cluster.messages import Moved, Recall, Registered
from execserver.relay.cluster.presence import Presence
from execserver.relay.cluster.residents import (
    RECALL_AGAIN_S,
    Answer,
    Claim,
    End,
    Order,
    Release,
    Residents,
    Step,
)

EPOCH = "0" * 16


@pytest.fixture
def residents() -> Residents:
    return Residents("n1", EPOCH)


def settled(residents: Residents) -> list[Step]:
    """Take what is due, and answer that it is done."""
    steps = residents.due(100)
    for step in steps:
        assert residents.answered(step, Answer.DONE) is None
    return steps


def test_an_executor_is_claimed_and_released(residents: Residents) -> None:
    presence = residents.arrived("box", "reg_1")
    assert presence == Presence("n1", EPOCH, 1, "reg_1")
    assert settled(residents) == [Claim("box", presence, fresh=True)]
    assert residents.due(100) == []
    residents.left("box")
    assert settled(residents) == [Release("box", presence)]
    assert not residents.is_due


def test_an_executor_that_came_again_meanwhile_is_not_released(residents: Residents) -> None:
    residents.arrived("box", "reg_1")
    settled(residents)
    residents.left("box")
    again = residents.arrived("box", "reg_1")
    assert again.claim == 2
    assert settled(residents) == [Claim("box", again, fresh=True)]


def test_a_step_that_failed_is_due_again(residents: Residents) -> None:
    residents.arrived("box", "reg_1")
    (step,) = residents.due(100)
    residents.failed(step)
    assert residents.due(100) == [step]


def test_no_more_steps_are_taken_than_asked_for(residents: Residents) -> None:
    for number in range(5):
        residents.arrived(f"box-{number}", "reg_1")
    assert len(residents.due(3)) == 3
    assert len(residents.due(3)) == 2


def test_a_repeated_claim_gives_way_and_a_first_one_does_not(residents: Residents) -> None:
    presence = residents.arrived("box", "reg_1")
    settled(residents)
    residents.all_again()
    (step,) = residents.due(100)
    assert step == Claim("box", presence, fresh=False)
    assert residents.answered(step, Answer.MOVED) == Order("box", End.EVERYBODY)


@pytest.mark.parametrize(
    ("answer", "end"),
    [(Answer.REPLACED, End.REPLACED), (Answer.UNREGISTERED, End.EXECUTOR)],
)
def test_a_registration_that_is_gone_ends_its_executor(
    residents: Residents, answer: Answer, end: End
) -> None:
    residents.arrived("box", "reg_1")
    (step,) = residents.due(100)
    assert residents.answered(step, answer) == Order("box", end)


def test_a_late_answer_about_an_earlier_websocket_changes_nothing(residents: Residents) -> None:
    residents.arrived("box", "reg_1")
    (step,) = residents.due(100)
    residents.arrived("box", "reg_2")
    assert residents.answered(step, Answer.REPLACED) is None
    assert residents.presence("box") == Presence("n1", EPOCH, 2, "reg_2")


def test_moved_ends_everybody_unless_the_executor_has_come_back(residents: Residents) -> None:
    first = residents.arrived("box", "reg_1")
    assert residents.heard(Moved("box", first), 0.0) == Order("box", End.EVERYBODY)
    residents.left("box")
    # The harnesses of an executor that had left before it came to the other node.
    assert residents.heard(Moved("box", first._replace(connected=False)), 0.0) == Order("box", End.EVERYBODY)
    residents.arrived("box", "reg_1")
    assert residents.heard(Moved("box", first), 0.0) is None


def test_messages_about_the_process_before_are_ignored(residents: Residents) -> None:
    presence = residents.arrived("box", "reg_1")
    assert residents.heard(Moved("box", presence._replace(epoch="1" * 16)), 0.0) is None
    assert residents.heard(Recall("box", presence._replace(epoch="1" * 16)), 0.0) is None
    assert residents.heard(Recall("other", presence), 0.0) is None


@pytest.mark.parametrize(("taken_over", "end"), [(True, End.TAKEN_OVER), (False, End.REPLACED)])
def test_a_new_registration_ends_the_executor_of_the_former(
    residents: Residents, taken_over: bool, end: End
) -> None:
    residents.arrived("box", "reg_1")
    assert residents.heard(Registered("box", "reg_2", taken_over), 0.0) == Order("box", end)
    residents.arrived("box", "reg_2")
    assert residents.heard(Registered("box", "reg_2", taken_over), 0.0) is None  # it is its own


def test_an_executor_is_recalled_once_in_a_while(residents: Residents) -> None:
    recall = Recall("box", residents.arrived("box", "reg_1"))
    assert residents.heard(recall, 0.0) == Order("box", End.EXECUTOR)
    again = Recall("box", residents.arrived("box", "reg_1"))
    assert residents.heard(recall, 1.0) is None
    assert residents.heard(again, RECALL_AGAIN_S - 0.1) is None
    assert residents.heard(again, RECALL_AGAIN_S) == Order("box", End.EXECUTOR)
