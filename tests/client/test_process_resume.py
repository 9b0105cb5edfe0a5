"""A remote process over the fake server: catching up after a lost connection, and attaching."""

from __future__ import annotations

import gevent
import pytest

from execserver.client import (
    Closed,
    ExecServerClient,
    Exited,
    InvalidRequestError,
    Output,
    OutputGap,
    RemoteProcess,
    ResumeFailed,
)
from tests.client.fake_server import FakeServer, Refusal, Unanswered, drop, end, read_answer, say


class TestAfterALoss:
    def test_every_open_process_catches_up_from_its_last_event(
        self, process: RemoteProcess, fake: FakeServer
    ) -> None:
        fake.answers["process/read"] = lambda params: read_answer([(2, b"b"), (3, b"c")], 4)
        say(fake, 1, b"a")
        assert process.next_event(20) == Output(1, "stdout", b"a")
        drop(fake)
        assert process.next_event(20) == Output(2, "stdout", b"b")
        assert process.next_event(20) == Output(3, "stdout", b"c")
        assert fake.asked("process/read")[0].params == {
            "processId": "p",
            "afterSeq": 1,
            "maxBytes": None,
            "waitMs": 0,
        }

    def test_new_notifications_wait_for_what_was_missed(
        self, process: RemoteProcess, fake: FakeServer
    ) -> None:
        def answer(params: object) -> object:
            say(fake, 3, b"c")
            end(fake, 4)
            return read_answer([(1, b"a"), (2, b"b")], 3)

        fake.answers["process/read"] = answer
        drop(fake)
        assert [event.seq for event in process] == [1, 2, 3, 4, 5]

    def test_an_end_that_was_missed_is_made_up_for(self, process: RemoteProcess, fake: FakeServer) -> None:
        fake.answers["process/read"] = lambda params: read_answer([(1, b"a")], 4, exit_code=9, closed=True)
        drop(fake)
        assert list(process) == [Output(1, "stdout", b"a"), Exited(2, 9, False), Closed(3)]
        assert process.wait() == 9

    def test_a_gap_is_raised_at_its_place_and_iteration_goes_on(
        self, process: RemoteProcess, fake: FakeServer
    ) -> None:
        fake.answers["process/read"] = lambda params: read_answer([(9, b"z")], 10)
        say(fake, 1, b"a")
        gevent.sleep(0.01)
        drop(fake)
        assert process.next_event(20) == Output(1, "stdout", b"a")
        with pytest.raises(OutputGap) as caught:
            process.next_event(20)
        assert (caught.value.first_seq, caught.value.last_seq, caught.value.lost_bytes) == (2, 8, None)
        assert process.next_event(20) == Output(9, "stdout", b"z")

    def test_a_second_loss_before_the_answer_loses_nothing(
        self, process: RemoteProcess, fake: FakeServer
    ) -> None:
        def answer(params: object) -> object:
            if len(fake.asked("process/read")) == 1:
                fake.current.drop()
                raise Unanswered
            return read_answer([(1, b"a")], 4, exit_code=0, closed=True)

        fake.answers["process/read"] = answer
        drop(fake)
        assert list(process) == [Output(1, "stdout", b"a"), Exited(2, 0, False), Closed(3)]

    def test_a_process_the_server_forgot_fails_after_what_had_arrived(
        self, process: RemoteProcess, fake: FakeServer
    ) -> None:
        def forget(params: object) -> object:
            raise Refusal(-32600, "unknown process id p")

        fake.answers["process/read"] = forget
        say(fake, 1, b"a")
        gevent.sleep(0.01)
        drop(fake)
        assert process.next_event(20) == Output(1, "stdout", b"a")
        with pytest.raises(InvalidRequestError, match="unknown process id p"):
            process.next_event(20)
        with pytest.raises(InvalidRequestError, match="unknown process id p"):
            process.wait(20)

    def test_a_session_that_is_gone_fails_its_processes(
        self, process: RemoteProcess, fake: FakeServer
    ) -> None:
        def refuse(params: object) -> object:
            raise Refusal(-32600, "unknown session id")

        fake.answers["initialize"] = refuse
        waiting = gevent.spawn(capture_end, process)
        gevent.sleep(0)
        fake.current.drop()
        assert waiting.get(timeout=20) is ResumeFailed

    def test_finished_processes_are_left_alone(self, process: RemoteProcess, fake: FakeServer) -> None:
        end(fake, 1)
        assert process.wait(20) == 0
        drop(fake)
        gevent.sleep(0.01)
        assert fake.asked("process/read") == []


def capture_end(process: RemoteProcess) -> type[Exception] | None:
    """Return the kind of error that iterating ends with."""
    try:
        list(process)
    except Exception as error:
        return type(error)
    return None


class TestAttach:
    def test_a_process_of_a_resumed_session_is_followed_from_its_beginning(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        fake.answers["process/read"] = lambda params: read_answer([(1, b"a")], 2)
        process = client.attach_process("p")
        say(fake, 2, b"b")
        assert process.next_event(20) == Output(1, "stdout", b"a")
        assert process.next_event(20) == Output(2, "stdout", b"b")

    def test_an_unknown_process_is_an_error(self, client: ExecServerClient, fake: FakeServer) -> None:
        def forget(params: object) -> object:
            raise Refusal(-32600, "unknown process id p")

        fake.answers["process/read"] = forget
        with pytest.raises(InvalidRequestError, match="unknown process id p"):
            client.attach_process("p")
