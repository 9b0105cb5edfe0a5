"""A harness that numbers its records from 1, and an executor in a process of its own."""

from __future__ import annotations

import json

import gevent
import pytest

from execserver.wire.relay_frames import AckFrame, Data, RelayFrame, Reset, encode_frame
from tests.remote.raw_harness import RawHarness
from tests.support.relay import Relay
from tests.support.remote_process import RemoteProcess, connect

SETTING = {"EXECSERVER_ACKNOWLEDGED_RECORDS": "1"}
INITIALIZE = b'{"id":1,"method":"initialize","params":{"clientName":"x"}}'


class NumberedHarness(RawHarness):
    """The other end of the proposal; it acknowledges each message that it returns."""

    numbers: list[int]

    def send(self, message: bytes) -> None:
        for seq, record in self._sender.seal(message):
            self._frame(RelayFrame(self.stream_id, Data(seq + 1, record)))

    def next(self) -> str:
        """Return the next message, or the reason of a reset; acknowledge what came."""
        while not self._messages:
            body = self._receive().body
            if isinstance(body, Reset):
                return body.reason
            if isinstance(body, Data):
                self.numbers = [*getattr(self, "numbers", []), body.seq]
                self._messages = self._receiver.feed(body.seq - 1, body.payload)
                self._socket.send(
                    encode_frame(RelayFrame(self.stream_id, AckFrame(), self._receiver.next_seq))
                )
        return self._messages.pop(0).decode()


def test_it_is_served_like_any_other_beside_plain_ones() -> None:
    with Relay() as relay, RemoteProcess(relay.url, env=SETTING) as executor:
        executor.says("waiting for a harness")
        numbered, plain = NumberedHarness(relay), RawHarness(relay)
        for harness in (numbered, plain):
            harness.send(INITIALIZE)
            assert "sessionId" in harness.next()
            harness.send(b'{"method":"initialized"}')
            harness.send(b'{"id":2,"method":"environment/status"}')
            assert json.loads(harness.next()) == {"id": 2, "result": {"status": "ready"}}
        assert numbered.numbers[:2] == [1, 2]
        assert max(ack for ack, _ in numbered.acks) >= 1
        assert plain.acks == set()
        with connect(relay) as client:
            assert client.start(["echo", "on"]).communicate().stdout == b"on\n"
        relay.executor.drop()
        for harness in (numbered, plain):
            harness.close()


@pytest.mark.parametrize("setting", [{}, {"EXECSERVER_ACKNOWLEDGED_RECORDS": "0"}])
def test_without_the_setting_its_first_record_waits_for_the_one_before(setting: dict[str, str]) -> None:
    with Relay() as relay, RemoteProcess(relay.url, env=setting) as executor:
        executor.says("waiting for a harness")
        harness = NumberedHarness(relay)
        harness.send(INITIALIZE)
        with pytest.raises(gevent.Timeout), gevent.Timeout(0.5):
            harness.next()
        harness.close()
