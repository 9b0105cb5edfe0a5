"""Input with several writes under way: in order and once, also over lost connections."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from execserver.client import ExecServerClient, RequestFailed, ResumeFailed, StdinUnavailable, WaitTimeout
from execserver.client.rules.write_window import WINDOW_BYTES
from execserver.protocol.batches import FsNodeKind, FsWriteEntry
from tests.client.conftest import QUICK
from tests.client.cutting_proxy import CuttingProxy
from tests.client.fake_server import FakeServer, Refusal, Request
from tests.support.server_process import ServerProcess

PIECE = 100_000


def pieces(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield b"%08d" % number * (PIECE // 8)


def digest(count: int) -> str:
    return hashlib.sha256(b"".join(pieces(count))).hexdigest()


def test_everything_arrives_in_order(server: ServerProcess, tmp_path: Path) -> None:
    with ExecServerClient.connect(server.url) as client:
        process = client.start(["sh", "-c", f"cat > {tmp_path}/there"], pipe_stdin=True)
        process.write_all(pieces(200))
        process.write(b"end")
        process.close_stdin()
        assert process.wait(20) == 0
    found = (tmp_path / "there").read_bytes()
    assert found == b"".join(pieces(200)) + b"end"


def test_lost_connections_neither_lose_nor_double_nor_turn_anything_round(
    server: ServerProcess, tmp_path: Path
) -> None:
    def with_cuts(proxy: CuttingProxy) -> Iterator[bytes]:
        for number, piece in enumerate(pieces(300)):
            if number % 30 == 29:
                proxy.cut()
            elif number % 30 == 14:
                proxy.swallow = True  # the answers to these are lost, until the next cut
            yield piece

    with CuttingProxy(server.url) as proxy, ExecServerClient.connect(proxy.url, QUICK) as client:
        process = client.start(["sh", "-c", f"cat > {tmp_path}/there"], pipe_stdin=True)
        cutter = gevent.spawn(cut_what_swallows, proxy)
        process.write_all(with_cuts(proxy))
        cutter.kill()
        proxy.swallow = False
        process.close_stdin()
        assert process.wait(20) == 0
        assert client.resumptions >= 10
    assert hashlib.sha256((tmp_path / "there").read_bytes()).hexdigest() == digest(300)


def cut_what_swallows(proxy: CuttingProxy) -> None:
    """Cut once the answers to all that is under way are swallowed: the writer waits for them."""
    seen = -1
    while True:
        gevent.sleep(0.02)
        if proxy.swallow and proxy.forwarded == seen:
            proxy.cut()
        seen = proxy.forwarded


def sizes(requests: list[Request]) -> list[int]:
    return [len(request.params["chunk"]) * 3 // 4 for request in requests]


def test_a_mebibyte_goes_ahead_of_the_first_answer(fake: FakeServer, client: ExecServerClient) -> None:
    process = client.start(["cat"], pipe_stdin=True)
    writer = gevent.spawn(process.write_all, [bytes(300_000)] * 10)
    fake.wait_for("process/write", 3)
    gevent.sleep(0)
    asked = fake.asked("process/write")
    assert sizes(asked) == [300_000] * 3  # a fourth would be more than the window
    assert 3 * 300_000 <= WINDOW_BYTES < 4 * 300_000
    fake.answers["process/write"] = lambda params: {"status": "accepted"}
    for request in asked:
        fake.current.reply(request.call_id, {"status": "accepted"})
    writer.get(timeout=20)
    assert len(fake.asked("process/write")) == 10


def test_what_was_not_answered_is_sent_again_first_and_under_its_id(
    fake: FakeServer, client: ExecServerClient
) -> None:
    process = client.start(["cat"], pipe_stdin=True)
    writer = gevent.spawn(process.write_all, [b"%d" % number for number in range(20)])
    fake.wait_for("process/write", 16)  # the window
    first = fake.asked("process/write")
    fake.current.reply(first[0].call_id, {"status": "accepted"})
    fake.wait_for("process/write", 17)
    fake.answers["process/write"] = lambda params: {"status": "accepted"}
    fake.current.drop()
    writer.get(timeout=20)
    again = [request for request in fake.asked("process/write") if request.connection == 1]
    ids = [request.params["writeId"] for request in fake.asked("process/write")]
    assert [request.params["writeId"] for request in again] == [*ids[1:17], *ids[-3:]]
    assert len(set(ids)) == 20


def test_an_input_that_is_not_there_ends_the_writing(server: ServerProcess) -> None:
    taken = 0

    def counted() -> Iterator[bytes]:
        nonlocal taken
        for piece in pieces(10_000):
            taken += 1
            yield piece

    with ExecServerClient.connect(server.url) as client:
        process = client.start(["sleep", "60"])
        with pytest.raises(StdinUnavailable):
            process.write_all(counted())
        assert taken < 100
        assert client.start(["true"]).wait(20) == 0


def test_a_session_that_ends_ends_the_writing(fake: FakeServer) -> None:
    with ExecServerClient(fake.open_transport, QUICK.replace(resume_window=0.2)) as client:
        process = client.start(["cat"], process_id="p", pipe_stdin=True)
        writer = gevent.spawn(process.write_all, [b"x"] * 20)
        fake.wait_for("process/write", 16)
        fake.unreachable = True
        fake.current.drop()
        with pytest.raises(ResumeFailed):
            writer.get(timeout=20)


PARTS = [
    FsWriteEntry(
        name=b"x", kind=FsNodeKind.FILE, content=bytes(500_000), part=b"p", offset=at, size=6_000_000
    )
    for at in range(0, 6_000_000, 500_000)
]


def offsets(fake: FakeServer, connection: int) -> list[int]:
    asked = fake.asked("fs/writePart")
    return [each.params["offset"] for each in asked if each.connection == connection]


def test_pieces_of_a_file_go_in_order_some_mebibytes_ahead_of_the_answers(
    fake: FakeServer, client: ExecServerClient
) -> None:
    writer = gevent.spawn(client.files.write_parts, "/", PARTS)
    fake.wait_for("fs/writePart", 8)
    gevent.sleep(0)
    order = [part.offset for part in PARTS]
    assert offsets(fake, 0) == order[:8]
    fake.current.reply(fake.asked("fs/writePart")[0].call_id, {})
    fake.wait_for("fs/writePart", 9)
    fake.answers["fs/writePart"] = lambda params: {}
    fake.current.drop()
    writer.get(timeout=20)
    assert (offsets(fake, 0), offsets(fake, 1)) == (order[:9], order[1:])


def test_a_piece_that_is_refused_or_not_answered_ends_the_writing(fake: FakeServer) -> None:
    def refuse(params: dict[str, int]) -> object:
        if params["offset"]:
            raise Refusal(-32603, "full")
        return {}

    fake.answers["fs/writePart"] = refuse
    with ExecServerClient(fake.open_transport, QUICK) as client:
        with pytest.raises(RequestFailed, match="full"):
            client.files.write_parts("/", PARTS)
        assert len(fake.asked("fs/writePart")) < len(PARTS)
    del fake.answers["fs/writePart"]
    with (
        ExecServerClient(fake.open_transport, QUICK.replace(request_timeout=0.1)) as client,
        pytest.raises(WaitTimeout),
    ):
        client.files.write_parts("/", PARTS[:1])
