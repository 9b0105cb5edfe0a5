"""A table of streams with harnesses around it, without any socket: frames are handed over by the test."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import gevent

from execserver.remote.fair_writer import FairWriter
from execserver.remote.registry import AuthenticationRejected, Rejected
from execserver.remote.registry_answers import Registration
from execserver.remote.relay_transport import RelayTransport
from execserver.remote.streams import StreamTable
from execserver.wire.noise import Initiator, prologue
from execserver.wire.noise_keys import PublicKeys, StaticKeys
from execserver.wire.noise_records import RecordReceiver, RecordSender
from execserver.wire.relay_frames import (
    RESET_PROTOCOL_ERROR,
    Body,
    Data,
    Handshake,
    RelayFrame,
    Reset,
    decode_frame,
    encode_frame,
)
from tests.support.waiting import wait_until

EXECUTOR = StaticKeys.generate()
HARNESS = StaticKeys.generate()
REGISTRATION = Registration("env-1", "ws://127.0.0.1:1/", "reg-1")


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Client:
    """Takes the messages of one stream, as a connection would."""

    def __init__(self, transport: RelayTransport) -> None:
        self.transport = transport
        self.messages: list[bytes] = []
        self.has_ended = False
        transport.deliver_to(self)

    def receive(self, messages: list[bytes]) -> None:
        """Keep messages."""
        self.messages += messages

    def ended(self) -> None:
        """Note the end."""
        self.has_ended = True


class Harness:
    """The plain protocol's other end, by hand, so that it can be wrong."""

    def __init__(
        self,
        scene: Scene,
        stream_id: str,
        authorization: bytes = b"let-me-in",
        keys: StaticKeys = HARNESS,
    ) -> None:
        self.scene = scene
        self.stream_id = stream_id
        about = prologue(REGISTRATION.environment_id, scene.table.registration.registration_id, stream_id)
        self._initiator = Initiator(keys, EXECUTOR.public, about)
        self.message1 = self._initiator.write_message1(authorization)
        self.sender: RecordSender | None = None
        self.receiver: RecordReceiver | None = None

    def begin(self) -> Harness:
        """Send the first message of the handshake."""
        self.scene.take(self.stream_id, Handshake(self.message1))
        return self

    def open(self) -> Harness:
        """Go through the whole handshake."""
        return self.begin().finish()

    def finish(self) -> Harness:
        """Wait for the second message and take it."""
        (answer,) = self.scene.answers(self.stream_id, 1)
        assert isinstance(answer, Handshake), answer
        self._initiator.read_message2(answer.payload)
        self.sender = RecordSender(self._initiator.send)
        self.receiver = RecordReceiver(self._initiator.receive)
        return self

    def seal(self, message: bytes) -> list[Data]:
        """Return a message as records, not sent yet."""
        assert self.sender is not None
        return [Data(*record) for record in self.sender.seal(message)]

    def send(self, message: bytes) -> None:
        """Send a message."""
        for record in self.seal(message):
            self.scene.take(self.stream_id, record)

    def read(self, messages: int) -> list[bytes]:
        """Return so many messages of the executor's."""
        assert self.receiver is not None
        found: list[bytes] = []
        while len(found) < messages:
            (body,) = self.scene.answers(self.stream_id, 1)
            assert isinstance(body, Data), body
            found += self.receiver.feed(body.seq, body.payload)
        return found


class Asked:
    """A question to the registry, which the test decides; `told` if the loop is to tell of the answer."""

    def __init__(self, judge: Callable[[], None], *, told: bool) -> None:
        self._judge = judge
        self._is_told = told
        self._judging: gevent.Greenlet[[], Rejected | None] | None = None
        self.is_closed = False

    def when_answered(self, act: Callable[[], None]) -> bool:
        """See `Question`."""
        if self._is_told:
            self._judging = gevent.Greenlet(self._judged)
            self._judging.link(lambda _: act() if not self.is_closed else None)
            self._judging.start()
        return self._is_told

    def is_answered(self) -> bool:
        """See `Question`."""
        return True

    def wait(self) -> None:
        """See `Question`."""
        if self._judging is None:
            self._judge()
        elif (rejected := self._judging.get(block=False)) is not None:
            raise rejected

    def _judged(self) -> Rejected | None:
        try:
            self._judge()
        except Rejected as rejected:
            return rejected.with_traceback(None)
        return None

    def close(self) -> None:
        """Note that nobody wants the answer any more."""
        self.is_closed = True
        if self._judging is not None:
            self._judging.kill(block=False)
            self._judging = None


class Scene:
    """The table; `sent` holds what it sends, oldest first.

    With `told` the loop tells of the registry's answers; else a greenlet waits for each.
    """

    def __init__(self, *, told: bool = True) -> None:
        self._told = told
        self.clock = Clock()
        self.sent: deque[RelayFrame] = deque()
        self.order: list[str] = []  # the stream of every frame that was sent
        self.clients: dict[str, Client] = {}
        self.asked: list[tuple[str, PublicKeys, str, str]] = []
        self.questions: list[Asked] = []
        self.judge: Callable[[str], None] = lambda authorization: None
        self.table = StreamTable(EXECUTOR, REGISTRATION, self._ask, self._serve, self.clock)
        self._writers: list[gevent.Greenlet[[], None]] = []
        self.attach()

    def attach(self) -> FairWriter:
        """Give the table a new websocket."""
        writer = FairWriter(self._keep, lambda buffers: None)
        self._writers = [each for each in self._writers if not each.ready()]
        self._writers.append(gevent.spawn(writer.run))
        self.table.attach(writer)
        return writer

    def close(self) -> None:
        """End everything."""
        self.table.detach()
        for client in self.clients.values():
            client.transport.abandon()  # a reliable stream waits for another websocket, with a timer
        gevent.killall(self._writers)

    def take(self, stream_id: str, body: Body) -> bool:
        """Hand a frame to the table."""
        return self.table.take(encode_frame(RelayFrame(stream_id, body)))

    def answers(self, stream_id: str, count: int) -> list[Body]:
        """Wait for so many frames of a stream and take them out."""
        wait_until(
            lambda: sum(each.stream_id == stream_id for each in self.sent) >= count, pause=gevent.sleep
        )
        mine = [each for each in self.sent if each.stream_id == stream_id][:count]
        for frame in mine:
            self.sent.remove(frame)
        return [frame.body for frame in mine]

    def is_reset(self, stream_id: str) -> bool:
        """Tell whether the next frame of a stream is a reset with the contract's reason."""
        return self.answers(stream_id, 1) == [Reset(RESET_PROTOCOL_ERROR)]

    def is_silent(self) -> bool:
        """Tell whether nothing more is sent, once everybody had a turn."""
        for _ in range(20):
            gevent.sleep(0)
        return not self.sent

    def _keep(self, message: bytes) -> list[bytes]:
        frame = decode_frame(message)
        assert (frame.ack, frame.ack_bits) == (0, 0) or self.clients[frame.stream_id].transport.is_reliable
        self.sent.append(frame)
        self.order.append(frame.stream_id)
        return [b"x"]

    def _ask(self, registration_id: str, harness: PublicKeys, authorization: str, stream_id: str) -> Asked:
        self.asked.append((registration_id, harness, authorization, stream_id))
        self.questions.append(Asked(partial(self.judge, authorization), told=self._told))
        return self.questions[-1]

    def _serve(self, transport: RelayTransport) -> Callable[[], None]:
        return partial(self.clients.__setitem__, transport.stream_id, Client(transport))


def says_no(authorization: str) -> None:
    """Judge as a registry that lets nobody in."""
    raise Rejected("no")


def rejects(authorization: str) -> None:
    """Judge as a registry that does not know the harness any more."""
    raise AuthenticationRejected("no")


def never_answers(authorization: str) -> None:
    """Judge as a registry that hangs."""
    gevent.sleep(3600)


def works(scene: Scene, harness: Harness, text: bytes = b'{"id":1}') -> bool:
    """Tell whether messages go both ways."""
    client = scene.clients[harness.stream_id]
    before = len(client.messages)
    harness.send(text)
    client.transport.outbox.send(text)
    return client.messages[before:] == [text] and harness.read(1) == [text]
