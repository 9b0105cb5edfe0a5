"""What a handle of a process knows, without a connection: for the clients on gevent and on asyncio alike."""

from __future__ import annotations

import pytest

from execserver.client.errors import InvalidPath, OutputGap, OutputTooLarge, StdinUnavailable, TransportClosed
from execserver.client.greenlets.router import Router
from execserver.client.rules.collecting import Collector
from execserver.client.rules.event_log import Closed, Exited, Output, ReadState
from execserver.client.rules.process_state import ProcessState
from execserver.client.rules.starting import INHERIT_ENVIRONMENT, start_params
from execserver.protocol.process import WriteStatus
from tests.support.lives import assert_freed

MANY = 1 << 30


def state(**changes: object) -> ProcessState:
    return ProcessState("p", sandboxed=True, **changes)  # type: ignore[arg-type]


class TestInput:
    def test_it_is_cut_into_pieces_with_write_ids_of_their_own(self) -> None:
        known = state()
        pieces = [*known.writing(b"x" * (1 << 20) + b"y"), *known.writing(b"z")]
        assert [piece.chunk[-1:] for piece in pieces] == [b"x", b"y", b"z"]
        prefixes, numbers = zip(
            *(piece.write_id.split("-") for piece in pieces if piece.write_id), strict=True
        )
        assert (len(set(prefixes)), numbers) == (1, ("1", "2", "3"))

    def test_no_bytes_are_one_empty_piece(self) -> None:
        assert [piece.chunk for piece in state().writing(b"")] == [b""]

    def test_two_handles_have_no_write_id_in_common(self) -> None:
        first, second = (next(state().writing(b"")).write_id for _ in range(2))
        assert first != second

    def test_what_is_not_accepted_is_an_error_with_the_servers_reason(self) -> None:
        state().check_written(WriteStatus.ACCEPTED)
        with pytest.raises(StdinUnavailable, match=WriteStatus.STDIN_CLOSED.value):
            state().check_written(WriteStatus.STDIN_CLOSED)

    def test_an_input_that_is_closed_already_counts_as_closed(self) -> None:
        state().check_closed(WriteStatus.STDIN_CLOSED)
        with pytest.raises(StdinUnavailable):
            state().check_closed(WriteStatus.UNKNOWN_PROCESS)


class TestEvents:
    def test_a_gap_is_raised_once_at_its_place(self) -> None:
        known = state()
        known.deliver(Output(1, "stdout", b"a"), MANY)
        known.skip(2, 3, 7)
        known.deliver(Closed(4), MANY)
        assert known.take() == Output(1, "stdout", b"a")
        with pytest.raises(OutputGap, match="events 2 to 3, 7 bytes"):
            known.take()
        assert (known.take(), known.take()) == (Closed(4), None)

    def test_what_is_held_counts_until_nothing_more_can_come(self) -> None:
        known = state()
        known.deliver(Output(1, "stdout", b"a" * 1000), MANY)
        assert known.held > 1000
        known.deliver(Closed(2), MANY)
        assert known.held == 0

    def test_above_the_hard_limit_the_oldest_output_becomes_a_gap(self) -> None:
        known = state()
        for seq in range(1, 4):
            known.deliver(Output(seq, "stdout", b"a" * 1000), 2600)
        with pytest.raises(OutputGap, match="events 1 to 1"):
            known.take()
        assert known.take() == Output(2, "stdout", b"a" * 1000)

    def test_a_failure_is_news_once_and_never_behind_the_last_event(self) -> None:
        known = state()
        assert (known.fail(TransportClosed("gone")), known.fail(TransportClosed("again"))) == (True, False)
        with pytest.raises(TransportClosed, match="gone"):
            known.raise_failure()
        whole = state()
        whole.deliver(Closed(1), MANY)
        assert not whole.fail(TransportClosed("gone"))
        whole.raise_failure()

    def test_a_read_goes_on_where_the_last_one_ended(self) -> None:
        known = state(after_seq=4)
        assert known.reading(None, None, 0.0).after_seq == 4
        known.has_read(ReadState(chunks=(), next_seq=9, exited=False, exit_code=None, closed=False))
        assert known.reading(None, 10, 0.25) == known.reading(8, 10, 0.25)
        assert known.reading(8, 10, 0.25).wait_ms == 250

    def test_whether_the_sandbox_denied_it_comes_with_the_exit(self) -> None:
        known = state()
        assert (known.known_denial(), known.has_ended, known.exit_code) == (None, False, None)
        known.deliver(Exited(1, 3, True), MANY)
        assert (known.known_denial(), known.has_ended, known.status) == (True, True, 3)
        assert ProcessState("p", sandboxed=False).known_denial() is False

    def test_it_is_freed_without_a_collection_also_after_a_failure(self) -> None:
        def life(number: int) -> None:
            known = state()
            known.skip(1, 2, None)
            known.fail(TransportClosed("gone"))
            with pytest.raises(OutputGap):
                known.take()
            with pytest.raises(TransportClosed):
                known.raise_failure()

        assert_freed(life, 40)


class TestStarting:
    def start(self, **changes: object) -> object:
        plain: dict[str, object] = dict.fromkeys(("env", "env_policy", "arg0", "sandbox", "process_id"))
        plain |= {"cwd": "/", "tty": False, "pipe_stdin": False, "process_name": None}
        return start_params(["true"], **(plain | changes))  # type: ignore[arg-type]

    def test_without_variables_the_servers_own_are_inherited(self) -> None:
        assert self.start().env_policy == INHERIT_ENVIRONMENT  # type: ignore[attr-defined]
        assert self.start(env={"A": "b"}).env_policy is None  # type: ignore[attr-defined]

    def test_ids_are_random_unless_given(self) -> None:
        ids = {self.start().process_id for _ in range(10)}  # type: ignore[attr-defined]
        assert len(ids) == 10
        assert self.start(process_id="mine").process_id == "mine"  # type: ignore[attr-defined]

    def test_a_relative_folder_is_refused(self) -> None:
        with pytest.raises(InvalidPath):
            self.start(cwd="here")


def test_output_is_collected_by_stream_up_to_a_bound() -> None:
    collector = Collector(9000)
    for data in (b"a", b"b", b"c" * 5000, b"d"):
        collector.add(Output(1, "stdout", data))
    collector.add(Output(1, "stderr", b"e"))
    collector.add(Output(1, "pty", b"f"))
    found = collector.completed(5)
    assert found == (5, b"ab" + b"c" * 5000 + b"df", b"e", ())
    with pytest.raises(OutputTooLarge, match="9000"):
        collector.add(Output(1, "stdout", b"x" * 4000))


class Handle:
    """A handle of a process that notes what it is told."""

    def __init__(self, process_id: str) -> None:
        self.process_id = process_id
        self.watched, self.writer, self.finished = False, True, False
        self.told: list[object] = []

    def deliver(self, event: object) -> bool:
        self.told.append(event)
        self.finished = isinstance(event, Closed)
        return self.finished

    def deliver_gap(self, *gap: object) -> None:
        self.told.append(gap)

    def catch_up(self, settled: object) -> None:
        self.told.append("catch up")

    def fail(self, error: Exception) -> None:
        self.told.append(error)


def test_a_router_begins_to_catch_up_as_its_owner_does_and_forgets_what_has_ended() -> None:
    begun: list[tuple[object, ...]] = []
    router = Router(lambda *act: begun.append(act))
    handle = Handle("p")
    router.processes["p"] = handle
    router.on_output("other", Output(1, "stdout", b""))
    router.on_resumed()
    assert begun == [(handle.catch_up, router.forget_if_finished)]
    router.on_output("p", Output(1, "stdout", b"x"))
    router.on_output("p", Closed(2))
    assert (handle.told, router.processes) == ([Output(1, "stdout", b"x"), Closed(2)], {})
