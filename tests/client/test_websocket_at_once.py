"""The client's WebSocket where the event loop itself reads and sends, against raw bytes."""

from __future__ import annotations

import gevent
import pytest
from gevent.event import Event

from execserver.client import ExecServerClientConnectOptions, TransportClosed
from execserver.client.carriers.websocket_transport import WebSocketTransport
from tests.client.raw_peer import Raw, raw, text


def open_transport(url: str) -> WebSocketTransport:
    return WebSocketTransport.connect(url, ExecServerClientConnectOptions(), 5.0)


class TestTakingAtOnce:
    def test_messages_are_taken_in_the_loop_and_the_others_are_received_in_order(self) -> None:
        taken: list[bytes] = []
        go_on = Event()

        def play(peer: Raw) -> None:
            peer.accept()
            peer.frame()  # whoever sent it takes at once by now
            peer.send(text(b"1") + text(b"2") + text(b"later") + text(b"3"))
            assert go_on.wait(20)
            peer.send(text(b"4")[:2])  # a frame that is cut
            peer.send(text(b"4")[2:] + text(b"5"))

        def take(message: bytes) -> bool:
            if message == b"later":
                return False
            taken.append(message)
            return True

        with raw(play) as url:
            transport = open_transport(url)
            transport.take_at_once(take)
            transport.send(b"{}")
            assert transport.receive() == b"later"
            assert taken == [b"1", b"2"]
            assert transport.receive() == b"3"  # behind one that was left, so that the order holds
            go_on.set()
            assert transport.receive() is None
            assert taken == [b"1", b"2", b"4", b"5"]
            transport.close()

    def test_odd_frames_in_between_change_nothing(self) -> None:
        taken: list[bytes] = []
        answers: list[tuple[int, bytes]] = []
        done = Event()

        def play(peer: Raw) -> None:
            peer.accept()
            peer.frame()
            peer.send(text(b"1") + text(b"ping", 0x89) + text(b"ab", 0x01) + text(b"cd", 0x80) + text(b"2"))
            answers.extend(peer.frame() for _ in range(2))

        def take(message: bytes) -> bool:
            taken.append(message)
            if message == b"2":
                done.set()
            return True

        with raw(play) as url:
            transport = open_transport(url)
            transport.take_at_once(take)
            transport.send(b"{}")
            reader = gevent.spawn(transport.receive)
            assert done.wait(20)
            assert transport.send_at_once(b"still at once")
            assert reader.get(timeout=20) is None
            transport.close()
        assert taken == [b"1", b"abcd", b"2"]
        assert answers == [(0x8A, b"ping"), (0x81, b"still at once")]

    def test_closing_wakes_the_reader(self) -> None:
        with raw(_silent) as url:
            transport = open_transport(url)
            transport.take_at_once(lambda message: True)
            reader = gevent.spawn(transport.receive)
            gevent.sleep(0)
            transport.close()
            assert reader.get(timeout=20) is None

    def test_a_connection_that_breaks_is_told(self) -> None:
        def play(peer: Raw) -> None:
            peer.accept()
            peer.frame()
            peer.break_off()

        with raw(play) as url:
            transport = open_transport(url)
            transport.take_at_once(lambda message: True)
            transport.send(b"{}")
            with pytest.raises(TransportClosed, match="the connection broke"):
                transport.receive()
            transport.close()


class TestSendingAtOnce:
    def test_a_message_goes_out_whole_and_a_full_socket_takes_none(self) -> None:
        go_on = Event()
        frames: list[bytes] = []

        def play(peer: Raw) -> None:
            peer.accept()
            assert go_on.wait(20)
            while (frame := peer.frame()[1]) != b"end":
                frames.append(frame)

        with raw(play) as url:
            transport = open_transport(url)
            transport.take_at_once(lambda message: True)
            sent = [b"%06d" % 0 + b"x" * 4000]
            while transport.send_at_once(sent[-1]):
                assert len(sent) < 100_000
                sent.append(b"%06d" % len(sent) + b"x" * 4000)
            sent.pop()
            go_on.set()
            transport.send(b"end")  # waits for the rest of what was sent at once
            transport.close()
        assert frames == sent

    def test_nothing_is_sent_at_once_before_the_loop_reads_or_after_the_end(self) -> None:
        with raw(_silent) as url:
            transport = open_transport(url)
            assert not transport.send_at_once(b"{}")
            transport.take_at_once(lambda message: True)
            assert transport.send_at_once(b"{}")
            transport.close()
            assert not transport.send_at_once(b"{}")


def _silent(peer: Raw) -> None:
    peer.accept()
    peer.wait_for_end()
