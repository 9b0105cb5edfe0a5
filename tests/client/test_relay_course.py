"""What a relay's client decides without sockets and clocks: whom it trusts, when it doubts, who waits."""

from __future__ import annotations

import pytest

from execserver.client.errors import ConnectFailed, RegistryRefused, RemoteConfigurationError, TransportClosed
from execserver.client.options import RemoteExecServerConnectArgs
from execserver.client.relay.access import MAX_ABANDONED, RelayAccess
from execserver.client.relay.course import DOUBT_S, INBOX_BYTES, UNSEALED_BYTES, RelayCourse
from execserver.remote.errors import RegistryError
from execserver.remote.registry_answers import Bundle
from execserver.wire.noise import Responder, prologue
from execserver.wire.noise_keys import StaticKeys
from execserver.wire.relay_frames import (
    RESET_CLOSED,
    Handshake,
    InvalidFrame,
    RelayFrame,
    Reset,
    decode_frame,
    encode_frame,
)
from execserver.wire.relay_stream import ExecutorStream, HarnessStream, StreamError, StreamRejected

EXECUTOR = StaticKeys.generate()
INITIALIZE = b'{"id":1,"method":"initialize","params":{}}'
ANSWER = b'{"id":1,"result":{"sessionId":"s"}}'


def access(environment_id: str = "env-1") -> RelayAccess:
    return RelayAccess(
        RemoteExecServerConnectArgs(url="https://relay.test/", environment_id=environment_id, token="t")
    )


def bundle(executor: StaticKeys = EXECUTOR, authorization: str = "let-me-in") -> Bundle:
    return Bundle("env-1", "wss://relay.test/x", "reg-1", executor.public, authorization)


class Ends:
    """A course and the executor's end, between which frames are carried by hand."""

    def __init__(self, *, reliable: bool = True) -> None:
        self.access = access()
        self.stream: HarnessStream = self.access.open_stream(bundle(), 0.0)
        self.course = RelayCourse(self.stream, 0.0)
        self.executor: ExecutorStream | None = None
        self._reliable = reliable
        self.carry(0.0)
        self.stream.send(INITIALIZE, 0.0)
        self.carry(0.0)
        self.says(ANSWER)
        self.carry(0.0)
        assert self.course.take_message().startswith(ANSWER[:20])

    @property
    def end(self) -> ExecutorStream:
        assert self.executor is not None
        return self.executor

    def says(self, message: bytes) -> None:
        self.end.send(message, 0.0)

    def carry(self, now: float) -> None:
        """Carry frames until neither end has any."""
        moved = True
        while moved:
            moved = False
            while (frame := self.stream.next_frame(now)) is not None:
                self._to_executor(decode_frame(frame), now)
                moved = True
            while self.executor is not None and (frame := self.executor.next_frame(now)) is not None:
                assert self.course.arrived(frame, now)
                if self.course.is_full:
                    self.course.hold()
                moved = True

    def _to_executor(self, frame: RelayFrame, now: float) -> None:
        if isinstance(frame.body, Handshake):
            responder = Responder(EXECUTOR, prologue("env-1", "reg-1", frame.stream_id))
            responder.read_message1(frame.body.payload)
            self.executor = ExecutorStream(frame.stream_id, responder, announce=self._reliable)
            self.executor.open()
        elif self.executor is not None:
            self.executor.feed(frame, now)


def test_an_executor_that_is_silent_though_something_is_due_is_doubted_after_a_while() -> None:
    ends = Ends()
    assert not ends.course.is_doubtful(5.0)
    ends.stream.send(b"x", 10.0)
    while ends.stream.next_frame(10.0) is not None:
        pass  # lost on the way
    assert not ends.course.is_doubtful(10.0 + DOUBT_S - 0.1)
    assert ends.course.is_doubtful(10.0 + DOUBT_S)
    ends.course.lost(16.0)
    ends.course.restored(17.0)
    assert not ends.course.is_doubtful(17.0 + DOUBT_S - 0.1)


def test_the_first_websocket_is_replaced_at_once_and_failures_cost_more_and_more() -> None:
    ends = Ends()
    ends.course.lost(5.0)
    assert ends.course.pause(0) == 0
    assert 0.025 <= ends.course.pause(1) <= 0.075
    assert 0.1 <= ends.course.pause(3) <= 0.3
    assert ends.course.pause(100) <= 3.0


def test_a_reliable_executor_is_held_back_and_loses_nothing() -> None:
    ends = Ends()
    sent = [b"%d:" % number + bytes(200_000) for number in range(100)]
    for message in sent:
        ends.says(message)
    ends.carry(0.0)
    assert ends.course.is_holding
    assert ends.end.queued_bytes > 6_000_000  # the inbox, what the stream keeps, and its window
    taken: list[bytes] = []
    while len(taken) < len(sent):
        while ends.course.has_messages:
            taken.append(ends.course.take_message())
            ends.course.release()
        ends.carry(0.0)
    assert taken == sent
    assert not ends.course.is_holding


def test_a_plain_executor_is_held_back_by_not_reading() -> None:
    ends = Ends(reliable=False)
    for _ in range(INBOX_BYTES // 1_000_000 + 1):
        ends.says(bytes(1_000_000))
    ends.carry(0.0)
    assert ends.course.is_full
    assert not ends.course.hold()
    ends.course.take_message()
    assert not ends.course.release()
    ends.course.take_message()
    ends.course.take_message()
    assert ends.course.release()


def test_senders_wait_while_too_much_is_not_sealed() -> None:
    ends = Ends()
    ends.stream.send(bytes(UNSEALED_BYTES), 0.0)
    assert ends.course.has_room
    ends.stream.send(b"x", 0.0)
    assert not ends.course.has_room


def test_frames_of_other_streams_are_ignored_and_garbage_ends_the_stream() -> None:
    ends = Ends()
    assert not ends.course.arrived(encode_frame(RelayFrame("other", Reset("x"))), 0.0)
    with pytest.raises(InvalidFrame):
        ends.course.arrived(b"\xff\xff garbage", 0.0)
    with pytest.raises(StreamError, match="reset: x"):
        ends.course.arrived(encode_frame(RelayFrame(ends.stream.stream_id, Reset("x"))), 0.0)


def test_the_reason_of_the_end_stays_and_everybody_gets_an_error_of_his_own() -> None:
    ends = Ends()
    assert ends.course.end(StreamError("first"))
    assert not ends.course.end(StreamError("second"))
    first, second = ends.course.outcome(), ends.course.closed()
    assert (type(first), str(first)) == (type(second), str(second)) == (TransportClosed, "first")
    assert first is not second
    assert not ends.course.has_frames


def test_an_executor_that_says_that_the_registry_refuses_is_final() -> None:
    ends = Ends()
    ends.course.end(StreamRejected("who are you?"))
    assert isinstance(ends.course.outcome(), RegistryRefused)
    assert isinstance(ends.course.closed(), TransportClosed)


def test_only_the_first_executor_is_accepted() -> None:
    mine = access()
    assert mine.accept(bundle()) == bundle()
    assert mine.accept(bundle(authorization="another")).authorization == "another"
    with pytest.raises(RegistryRefused, match="another executor has taken over"):
        mine.accept(bundle(StaticKeys.generate()))


@pytest.mark.parametrize(
    ("transient", "unknown", "known", "kind"),
    [
        (True, False, False, ConnectFailed),
        (False, False, True, RegistryRefused),
        (False, True, False, RegistryRefused),
        (False, True, True, ConnectFailed),
    ],
)
def test_an_unknown_environment_may_come_back_if_it_was_known(
    transient: bool, unknown: bool, known: bool, kind: type[Exception]
) -> None:
    mine = access()
    if known:
        mine.accept(bundle())
    error = RegistryError("no", "because")
    error.is_transient, error.is_unknown = transient, unknown
    refused = mine.refused(error)
    assert (type(refused), str(refused)) == (kind, "no: because")


def test_abandoned_streams_are_told_once_and_the_newest_few_only() -> None:
    mine, ends = access(), Ends()
    mine.abandon(ends.stream)
    mine.abandon(ends.stream)
    told = mine.farewells()
    assert decode_frame(next(told)) == RelayFrame(ends.stream.stream_id, Reset(RESET_CLOSED))
    del told  # the socket broke: nobody asked for the next one
    assert len(list(mine.farewells())) == 1
    assert list(mine.farewells()) == []
    for _ in range(MAX_ABANDONED + 1):
        mine.abandon(Ends().stream)
    assert len(list(mine.farewells())) == MAX_ABANDONED


def test_a_stream_that_nobody_keeps_is_not_abandoned() -> None:
    ends = Ends(reliable=False)
    ends.access.abandon(ends.stream)
    assert list(ends.access.farewells()) == []


def test_an_authorization_that_cannot_be_sent_is_refused_also_where_the_stream_is_made_ahead() -> None:
    mine, asked = access(), bundle(authorization="x" * 5000)
    mine.make_stream_ahead(asked, 0.0)
    with pytest.raises(RegistryRefused, match="authorization cannot be used"):
        mine.open_stream(asked, 0.0)


def test_a_stream_that_was_made_ahead_is_used_once_and_for_its_own_bundle_alone() -> None:
    mine, first, second = access(), bundle(), bundle()
    mine.make_stream_ahead(first, 0.0)
    mine.make_stream_ahead(second, 0.0)
    others = [mine.open_stream(first, 0.0), mine.open_stream(second, 0.0)]
    mine.make_stream_ahead(second, 0.0)
    streams = [*others, mine.open_stream(second, 0.0), mine.open_stream(second, 0.0)]
    assert len({stream.stream_id for stream in streams}) == 4


def test_every_stream_has_ephemeral_keys_of_its_own() -> None:
    mine = access()
    mine.make_keys_ahead()
    first = [mine.open_stream(bundle(), 0.0) for _ in range(2)]
    frames = [[decode_frame(stream.next_frame(0.0) or b"").body for _ in range(2)] for stream in first]
    handshakes = [body.payload for _, body in frames if isinstance(body, Handshake)]
    assert len({message[1088:2304] for message in handshakes}) == 2


def test_an_environment_that_would_change_the_address_is_refused() -> None:
    with pytest.raises(RemoteConfigurationError, match="cannot be used"):
        access("../x")
