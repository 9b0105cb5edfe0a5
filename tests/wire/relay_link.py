"""Two ends of a stream and an unkind network between them, all in one thread and without a clock."""

from __future__ import annotations

import random
from collections import deque

from execserver.wire.noise import Responder, prologue
from execserver.wire.noise_keys import StaticKeys
from execserver.wire.relay_frames import Handshake, InvalidFrame, decode_frame
from execserver.wire.relay_stream import ExecutorStream, HarnessStream, RelayStream, Route, StreamError

STREAM_ID = "00000000-0000-4000-8000-000000000001"
INITIALIZE = b'{"id":1,"method":"initialize","params":{"clientName":"c","resumeSessionId":null}}'
ANSWER = b'{"id":1,"result":{"sessionId":"s"}}'
_HARNESS, _EXECUTOR = StaticKeys.generate(), StaticKeys.generate()


class End:
    """One end: its stream, what it received, and the frames on their way to it."""

    def __init__(self, stream: RelayStream) -> None:
        self.stream = stream
        self.received: list[bytes] = []
        self.inbound: deque[bytes] = deque()

    @property
    def error(self) -> StreamError | None:
        """Why the stream ended, or None."""
        return self.stream.error

    def take(self, data: bytes, now: float) -> None:
        """Feed one frame; an end of the stream is noted by the stream itself."""
        if self.stream.error is not None:
            return
        try:
            self.received += self.stream.feed(decode_frame(data), now)
        except StreamError:
            assert self.stream.error is not None

    def tick(self, now: float) -> None:
        """Let time pass."""
        due = self.stream.deadline()
        if due is None or due > now:
            return
        try:
            self.stream.tick(now)
        except StreamError:
            assert self.stream.error is not None


def open_ends(announce_harness: bool = True, announce_executor: bool = True) -> tuple[End, End]:
    """Return (harness, executor) after the handshake, which nobody disturbs."""
    about = prologue("env", "reg", STREAM_ID)
    route = Route("env", "reg", _EXECUTOR.public, "authorization")
    harness = HarnessStream(STREAM_ID, _HARNESS, route, 0.0, announce=announce_harness)
    frames = [decode_frame(frame) for frame in iter(lambda: harness.next_frame(0.0) or b"", b"")]
    handshake = frames[-1].body
    assert isinstance(handshake, Handshake)
    responder = Responder(_EXECUTOR, about)
    assert responder.read_message1(handshake.payload) == (_HARNESS.public, b"authorization")
    executor = ExecutorStream(STREAM_ID, responder, announce=announce_executor)
    executor.open()
    answer = executor.next_frame(0.0)
    assert answer is not None
    assert harness.feed(decode_frame(answer), 0.0) == []
    return End(harness), End(executor)


class Link:
    """Carries frames between two ends; loses, repeats and reorders them as it is told."""

    def __init__(self, harness: End, executor: End) -> None:
        self.ends = (harness, executor)
        self.now = 0.0
        self.frames = 0

    def pull(self, limit: int = 1_000_000) -> None:
        """Put what both ends want to say on its way."""
        for end, peer in (self.ends, self.ends[::-1]):
            for _ in range(limit):
                frame = end.stream.next_frame(self.now)
                if frame is None:
                    break
                peer.inbound.append(frame)
                self.frames += 1

    def deliver(self) -> None:
        """Deliver all that is on its way, in order."""
        for end in self.ends:
            while end.inbound:
                end.take(end.inbound.popleft(), self.now)

    def deliver_valid(self) -> None:
        """Deliver all that is on its way and can be understood, as an executor does."""
        for end in self.ends:
            while end.inbound:
                data = end.inbound.popleft()
                try:
                    frame = decode_frame(data)
                except InvalidFrame:
                    continue
                if frame.stream_id == STREAM_ID:
                    end.take(data, self.now)

    def settle(self, seconds: float = 60.0) -> None:
        """Play a kind network until nothing happens any more, or for so many seconds."""
        until = self.now + seconds
        while self.now < until:
            self.pull()
            if any(end.inbound for end in self.ends):
                self.deliver()
                continue
            due = [end.stream.deadline() for end in self.ends if end.error is None]
            soonest = min((each for each in due if each is not None), default=until)
            self.now = max(self.now, min(soonest, until)) + 1e-6
            for end in self.ends:
                end.tick(self.now)

    def open(self) -> None:
        """Exchange `initialize` and its answer."""
        harness, executor = self.ends
        harness.stream.send(INITIALIZE, self.now)
        self.pull()
        self.deliver()
        executor.stream.send(ANSWER, self.now)
        self.pull()
        self.deliver()

    def replace(self, end: End) -> None:
        """Cut an end's WebSocket, with all that is on its way on it, and give it another one."""
        other = self.ends[0] if end is self.ends[1] else self.ends[1]
        end.inbound.clear()
        other.inbound.clear()
        if end.error is None:
            try:
                end.stream.lost(self.now)
                end.stream.restored(self.now)
            except StreamError:
                pass

    def disturb(self, rng: random.Random) -> None:
        """Do one unkind or kind thing."""
        end = rng.choice(self.ends)
        what = rng.randrange(8)
        inbound = end.inbound
        if what == 0 and inbound:
            del inbound[rng.randrange(len(inbound))]
        elif what == 1 and inbound:
            inbound.append(rng.choice(inbound))
        elif what == 2 and inbound:
            mixed = list(inbound)
            rng.shuffle(mixed)
            end.inbound = deque(mixed)
        elif what == 3:
            self.replace(end)
        elif what == 4:
            self.now += rng.random() * 2
            for each in self.ends:
                each.tick(self.now)
        elif what == 5:
            self.pull(rng.randint(1, 20))
        else:
            for _ in range(min(len(inbound), rng.randint(1, 20))):
                end.take(inbound.popleft(), self.now)
