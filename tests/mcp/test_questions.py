from __future__ import annotations

import _socket
from collections.abc import Callable, Iterator

import gevent
import pytest
from gevent import socket
from gevent.event import AsyncResult, Event

from execserver.mcp import questions
from execserver.mcp.elicitation import Answer, Question
from execserver.mcp.questions import Questions
from execserver.zygote.supervision import records
from tests.support.waiting import wait_until


class Client:
    """Whoever asks the person: it notes the questions, and each waits until it is answered."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.withdrawn: list[Question] = []
        self._answers: list[AsyncResult[Answer]] = []

    def ask(self, question: Question) -> Answer:
        answer: AsyncResult[Answer] = AsyncResult()
        self.asked.append(question)
        self._answers.append(answer)
        try:
            answered = answer.get()
            assert answered is not None
            return answered
        except gevent.GreenletExit:
            self.withdrawn.append(question)
            raise

    def answer(self, index: int, answer: Answer) -> None:
        self._answers[index].set(answer)


class Scene:
    """The server's end between a supervisor, played by the test, and a client."""

    def __init__(self) -> None:
        near, far = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.far = socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, far.detach())
        near_socket = socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, near.detach())
        self.client = Client()
        self.pauses = 0
        self.shell_ended = Event()
        self.questions = Questions(
            near_socket, self.client.ask, self._pause, self._resume, self.shell_ended.set
        )
        self.questions.start()
        self._frames = records.FrameReader()
        self._received: list[records.Message] = []

    def _pause(self) -> None:
        self.pauses += 1

    def _resume(self) -> None:
        self.pauses -= 1

    def put(self, number: int, *argv: bytes) -> None:
        question = records.Question(number, b"/bin/" + argv[0], list(argv), b"/work")
        self.far.sendall(records.encode_message(question))

    def answer(self) -> records.Message:
        while not self._received:
            data = self.far.recv(65536)
            assert data, "the server closed the socket"
            self._received += self._frames.feed(data)
        return self._received.pop(0)

    def close(self) -> None:
        self.questions.close()
        self.far.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.close()


def until(condition: Callable[[], bool]) -> None:
    wait_until(condition, pause=gevent.sleep)


def test_a_question_is_asked_with_its_texts(scene: Scene) -> None:
    scene.put(1, b"git", b"init", b"\xff")
    until(lambda: len(scene.client.asked) == 1)
    assert scene.client.asked == [Question("/bin/git", ["git", "init", "\udcff"], "/work")]


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        (Answer.ACCEPT, records.ACCEPT),
        (Answer.DECLINE, records.DECLINE),
        (Answer.CANCEL, records.CANCEL),
        (Answer.FAILED, records.FAILED),
    ],
)
def test_each_answer_goes_back_under_its_number(scene: Scene, answer: Answer, action: int) -> None:
    scene.put(7, b"true")
    until(lambda: len(scene.client.asked) == 1)
    scene.client.answer(0, answer)
    assert scene.answer() == records.Answer(7, action)


def test_questions_are_open_side_by_side_and_each_holds_the_clock(scene: Scene) -> None:
    for number in range(3):
        scene.put(number, b"p%d" % number)
    until(lambda: len(scene.client.asked) == 3)
    assert scene.pauses == 3
    scene.client.answer(1, Answer.ACCEPT)
    assert scene.answer() == records.Answer(1, records.ACCEPT)
    assert scene.pauses == 2
    scene.client.answer(2, Answer.DECLINE)
    scene.client.answer(0, Answer.ACCEPT)
    answers = [scene.answer(), scene.answer()]
    assert sorted(answers, key=repr) == [
        records.Answer(0, records.ACCEPT),
        records.Answer(2, records.DECLINE),
    ]
    until(lambda: scene.pauses == 0)


def test_a_withdrawn_question_is_taken_from_the_person_and_lets_the_clock_run(scene: Scene) -> None:
    scene.put(1, b"true")
    until(lambda: len(scene.client.asked) == 1)
    scene.far.sendall(records.encode_message(records.Withdrawn(1)))
    until(lambda: scene.client.withdrawn == scene.client.asked)
    assert (scene.pauses, scene.questions.waiting) == (0, 0)


def test_a_question_withdrawn_before_anyone_was_asked_holds_no_clock(scene: Scene) -> None:
    question = records.encode_message(records.Question(1, b"/bin/true", [b"true"], b"/"))
    scene.far.sendall(question + records.encode_message(records.Withdrawn(1)))
    scene.put(2, b"false")
    until(lambda: len(scene.client.asked) == 1)
    assert scene.client.asked[0].file == "/bin/false"
    assert scene.pauses == 1


def test_what_nobody_asked_can_be_withdrawn(scene: Scene) -> None:
    scene.far.sendall(records.encode_message(records.Withdrawn(5)))
    scene.put(1, b"true")
    until(lambda: len(scene.client.asked) == 1)


def test_the_end_of_the_shell_is_passed_on_and_hanging_up_is_heard(scene: Scene) -> None:
    scene.far.sendall(records.encode_message(records.ShellEnded()))
    assert scene.shell_ended.wait(20)
    scene.questions.hang_up()
    assert scene.far.recv(1) == b""


def test_the_end_of_the_supervisor_withdraws_everything(scene: Scene) -> None:
    scene.put(1, b"a")
    scene.put(2, b"b")
    until(lambda: len(scene.client.asked) == 2)
    scene.far.close()
    until(lambda: len(scene.client.withdrawn) == 2)
    assert scene.pauses == 0


def test_bytes_that_are_no_question_withdraw_everything(scene: Scene) -> None:
    scene.put(1, b"a")
    until(lambda: len(scene.client.asked) == 1)
    scene.far.sendall(b"\xff\xff\xff\xff")
    until(lambda: len(scene.client.withdrawn) == 1)


def test_above_the_bound_nobody_is_asked(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "WAITING_QUESTIONS", 2)
    for number in range(3):
        scene.put(number, b"p")
    assert scene.answer() == records.Answer(2, records.FAILED)
    assert scene.questions.waiting == 2


def test_above_the_bound_of_bytes_nobody_is_asked(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "WAITING_BYTES", 1000)
    scene.put(1, b"p", b"x" * 600)
    scene.put(2, b"p", b"x" * 600)
    assert scene.answer() == records.Answer(2, records.FAILED)
