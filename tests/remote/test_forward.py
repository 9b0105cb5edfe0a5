"""`exec-server forward`: one WebSocket to the destination for each stream, and nothing changed on the way."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from execserver.leaving import Leave
from execserver.remote.addresses import checked_destination
from execserver.remote.errors import ConfigurationError
from execserver.remote.forward import Forwarder
from execserver.remote.relay_transport import RelayTransport
from execserver.verbs.forward import HELP, parse
from execserver.wire.relay_frames import RESET_CLOSED, Reset
from tests.conftest import LONG
from tests.remote.raw_harness import RawHarness
from tests.remote.scene import Harness, Scene
from tests.support.greenlets import turns
from tests.support.lives import left_by
from tests.support.relay import Peer, Relay, Reply
from tests.support.remote_process import API_KEY, RemoteProcess, connect
from tests.support.server_process import OURS, ServerProcess
from tests.support.waiting import wait_until

RECORDED = Path(__file__).parents[1] / "transcripts" / "newest" / "50-cli-remote.jsonl"
ANSWER = b'{"id": 1,  "result": {}}'


class ForwardingScene(Scene):
    """A table whose streams go to a destination, which the test plays."""

    def __init__(self, destination: Relay) -> None:
        self.destination = destination
        self.url = f"ws://user:secret@127.0.0.1:{destination.port}/executor?a=b"
        super().__init__()

    def _serve(self, transport: RelayTransport) -> Callable[[], None]:
        return Forwarder(checked_destination(self.url), {}).serve(transport)

    def peers(self, count: int) -> list[Peer]:
        """Wait for so many connections at the destination."""
        wait_until(lambda: len(self.destination.executors) >= count, pause=gevent.sleep)
        return self.destination.executors


@pytest.fixture
def scene() -> Iterator[ForwardingScene]:
    with Relay() as destination:
        destination.routing = False
        made = ForwardingScene(destination)
        yield made
        made.close()
        turns()


def test_a_stream_gets_a_connection_once_its_harness_was_let_in(scene: ForwardingScene) -> None:
    let_in, asked = gevent.event.Event(), gevent.event.Event()

    def judge(authorization: str) -> None:
        asked.set()
        let_in.wait()

    scene.judge = judge
    harness = Harness(scene, "a").begin()
    assert asked.wait(20)
    turns()
    assert scene.destination.executors == []
    let_in.set()
    scene.answers("a", 1)
    (peer,) = scene.peers(1)
    head = peer.head.split("\r\n")
    assert head[0] == "GET /executor?a=b HTTP/1.1"
    names = sorted(line.partition(":")[0].lower() for line in head[1:])
    assert names == ["connection", "host", "sec-websocket-key", "sec-websocket-version", "upgrade"]
    assert harness.stream_id == "a"


@pytest.mark.parametrize("message", [b'{"id": 1,\n "method":"x"}', b"{broken", b"\xff\xfe", b"x" * 200_000])
def test_messages_pass_unchanged(scene: ForwardingScene, message: bytes) -> None:
    harness = Harness(scene, "a").open()
    harness.send(message)
    (peer,) = scene.peers(1)
    assert peer.received.get(timeout=20) == message
    peer.send(message)
    assert harness.read(1) == [message]
    if message.isascii():
        peer.send(message, text=True)
        assert harness.read(1) == [message]


def test_each_stream_has_its_own_connection(scene: ForwardingScene) -> None:
    one, two = Harness(scene, "a").open(), Harness(scene, "b").open()
    one.send(b"1")
    two.send(b"2")
    peers = scene.peers(2)
    assert sorted(peer.received.get(timeout=20) or b"" for peer in peers) == [b"1", b"2"]


@pytest.mark.parametrize("is_orderly", [True, False])
def test_a_lost_destination_resets_its_stream_behind_the_last_answer(
    scene: ForwardingScene, is_orderly: bool
) -> None:
    one, two = Harness(scene, "a").open(), Harness(scene, "b").open()
    one.send(b"1")
    two.send(b"2")
    peers = {peer.received.get(timeout=20): peer for peer in scene.peers(2)}
    peers[b"1"].send(ANSWER)
    peers[b"1"].raw(b"\x88\x02\x03\xe8") if is_orderly else peers[b"1"].drop()
    assert one.read(1) == [ANSWER]
    assert scene.is_reset("a")
    peers[b"2"].send(ANSWER)
    assert two.read(1) == [ANSWER]


def test_a_destination_that_cannot_be_reached_costs_that_stream_only(scene: ForwardingScene) -> None:
    scene.destination.upgrade_status = 503
    Harness(scene, "a").open()
    assert scene.is_reset("a")
    scene.destination.upgrade_status = 101
    later = Harness(scene, "b").open()
    later.send(b"1")
    assert scene.peers(1)[0].received.get(timeout=20) == b"1"


def test_the_end_of_a_stream_closes_its_connection(scene: ForwardingScene) -> None:
    Harness(scene, "a").open()
    (peer,) = scene.peers(1)
    scene.take("a", Reset(RESET_CLOSED))
    assert peer.received.get(timeout=20) is None
    Harness(scene, "b").open()
    scene.peers(2)
    scene.table.detach()
    assert scene.destination.executors[1].received.get(timeout=20) is None


def test_a_destination_that_reads_nothing_holds_its_harness_back(scene: ForwardingScene) -> None:
    """Beyond what may wait the stream ends, as one whose harness sends more than a server takes."""
    harness, other = Harness(scene, "a").open(), Harness(scene, "b").open()
    wait_until(lambda: len(scene.destination.executors) == 2, pause=gevent.sleep)
    first = scene.destination.executors[0]
    first.reads.clear()
    for _ in range(400):
        harness.send(b"x" * 50_000)
        gevent.sleep(0)
        if scene.table.count < 2:
            break
    assert scene.is_reset("a")
    other.send(b"on")
    assert scene.destination.executors[1].received.get(timeout=20) == b"on"
    first.drop()


def test_nothing_is_left_of_streams_that_ended(scene: ForwardingScene) -> None:
    def life(number: int) -> None:
        harness = Harness(scene, f"s-{number}").open()
        harness.send(b"1")
        peer = scene.peers(1)[0]
        assert peer.received.get(timeout=20) == b"1"
        peer.drop()
        assert scene.is_reset(harness.stream_id)
        scene.destination.executors.clear()
        scene.asked.clear()
        scene.order.clear()

    def settle() -> None:
        scene.destination._greenlets[:] = scene.destination._greenlets[:1]
        turns()

    assert left_by(life, 300 if LONG else 20, settle=settle).ours == {}  # the destination here keeps its own


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:1", "forward destination must be a ws:// or wss:// URL"),
        ("127.0.0.1", "relative URL without a base"),
        ("", "relative URL without a base"),
        ("ws://", "the destination has no host"),
        ("ws://[::1", "the destination is no valid URL"),
        ("ws://h:99999", "the destination is no valid URL"),
    ],
)
def test_only_the_address_of_a_websocket_is_taken(url: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        checked_destination(url)
    assert refused.value.text == f"failed to configure exec-server websocket: {reason}"


def test_an_address_keeps_its_query_and_loses_credentials() -> None:
    assert checked_destination(" wss://u:p@[::1]:8/a/b?c=d#e ") == "wss://[::1]:8/a/b?c=d"


def recorded() -> list[dict[str, Any]]:
    lines = [json.loads(line)["msg"] for line in RECORDED.read_text().splitlines()]
    return [each for each in lines if each.get("argv", [])[:1] == ["forward"] and not each["env"]]


@pytest.mark.parametrize("case", recorded(), ids=lambda case: " ".join(case["argv"])[:80])
def test_mistakes_are_told_as_recorded(case: dict[str, Any]) -> None:
    with pytest.raises(Leave) as left:
        parse(case["argv"][1:])
    wanted = case["stderr"].replace("\n  tip: a similar argument exists: '--connect'\n", "")
    assert (left.value.status, left.value.stderr.strip()) == (case["exit"], wanted)


def test_the_help_names_every_recorded_option() -> None:
    lines = [json.loads(line)["msg"] for line in RECORDED.read_text().splitlines()]
    (text,) = [each["stdout"] for each in lines if each.get("argv") == ["help", "forward"]]
    names = {line.split("--")[1].split()[0] for line in text.splitlines() if line.lstrip().startswith("-")}
    assert {name for name in names if f"--{name}" not in HELP} == set()


def forwarded(relay: Relay, destination: str, *more: str) -> RemoteProcess:
    """Return the program as `codex exec-server forward` starts it."""
    argv = (*OURS.argv, "exec-server", "forward", "--connect", destination)
    return RemoteProcess(relay.url, ("--environment-id", "env-1", *more), argv=argv)


def test_commands_run_at_the_destination(tmp_path: Path) -> None:
    with Relay() as relay, ServerProcess() as server, forwarded(relay, server.url) as process:
        process.says("waiting for a harness")
        with connect(relay) as client:
            done = client.start(["/bin/sh", "-c", "cat; echo $PPID"], pipe_stdin=True).communicate(b"in\n")
            assert done.stdout.split()[0] == b"in"
            client.write_file(str(tmp_path / "f"), b"x" * 3_000_000)
            assert client.read_file(str(tmp_path / "f")) == b"x" * 3_000_000
            session = client.session_id
            kept = client.start(["/bin/sh", "-c", "read line; echo got $line"], pipe_stdin=True)
            relay.executor.drop()  # the stream outlives it, and so does the connection behind it
            wait_until(lambda: len(relay.executors) == 2, pause=gevent.sleep)
            kept.write(b"it\n")
            assert kept.communicate().stdout == b"got it\n"
            assert client.session_id == session
        harness = RawHarness(relay)
        harness.send(b"{broken")
        assert '"id":-1' in harness.next()  # the destination's answer
        harness.close()
        assert process.stop(signal.SIGTERM) == 0
        assert API_KEY not in process.errors()


def test_a_destination_of_another_kind_is_refused_before_anything_is_asked() -> None:
    with Relay() as relay, forwarded(relay, "http://127.0.0.1:1") as process:
        assert process.wait() == 1
        text = "failed to configure exec-server websocket: forward destination must be a ws:// or wss:// URL"
        assert process.errors() == f"Error: {text}\n"
        assert relay.calls == []


def test_a_rejected_credential_ends_it() -> None:
    with Relay() as relay:
        relay.replies["register"] = lambda call: Reply(401, {"error": {"message": "no"}})
        with forwarded(relay, "ws://127.0.0.1:1") as process:
            assert process.wait() == 1
            assert "authentication failed (401 Unauthorized): no" in process.errors()
