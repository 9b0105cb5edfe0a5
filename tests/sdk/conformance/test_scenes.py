"""The same scenes on every client of the project, directly and through a relay: all must end alike."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from execserver.client.errors import NotFoundError, RequestFailed
from execserver.protocol import lifting
from execserver.protocol.batches import FsNodeKind, FsWriteEntry
from tests.sdk.conformance.fronts import FRONTS, WAIT_S, Done, Front, Running
from tests.sdk.conformance.places import Direct, Place, Relayed

BLOCKS = 12
MEBIBYTE = 1 << 20

# Prints blocks of random bytes, with a little time between them.
GENERATOR = """
import random, sys, time
chance = random.Random(1)
for number in range(int(sys.argv[1])):
    sys.stdout.buffer.write(chance.randbytes(1 << 18))
    sys.stdout.buffer.flush()
    time.sleep(float(sys.argv[2]))
"""


def expected() -> str:
    chance, digest = random.Random(1), hashlib.sha256()
    for _ in range(BLOCKS):
        digest.update(chance.randbytes(1 << 18))
    return digest.hexdigest()


# Without a relay the clients' own tests do the same in every run.
@pytest.fixture(scope="module", params=[pytest.param("ws", marks=pytest.mark.long), "relay"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    is_direct = request.param == "ws"
    place: Place = Direct() if is_direct else Relayed(request.getfixturevalue("relay_scene"))
    yield place
    place.close()


# The gevent client's own tests are in every run, so its scenes are played in the long one.
LONG_ONLY = {"gevent": pytest.mark.long}


@pytest.fixture(params=[pytest.param(name, marks=LONG_ONLY.get(name, ())) for name in FRONTS])
def front(place: Place, request: pytest.FixtureRequest) -> Iterator[Front]:
    front = FRONTS[request.param](place)
    yield front
    front.close()
    place.cut()  # what the proxy still carries


def pieces(process: Running) -> Iterator[bytes]:
    while (piece := process.piece()) is not None:
        yield piece


def output_until(process: Running, text: bytes) -> bytes:
    seen = b""
    for piece in pieces(process):
        seen += piece
        if text in seen:
            return seen
    raise AssertionError(f"{text!r} is not in {seen!r}")


def test_a_command_runs_to_its_end(front: Front) -> None:
    assert front.run(["sh", "-c", "cat; echo err >&2; exit 3"], b"in\n") == Done(3, b"in\n", b"err\n")
    large = random.Random(2).randbytes(3_000_000)
    assert front.run(["cat"], large) == Done(0, large, b"")


def test_what_cannot_be_started_is_told(front: Front) -> None:
    with pytest.raises(RequestFailed):
        front.start(["/nowhere/program"])
    assert front.run(["true"], b"") == Done(0, b"", b"")


def test_a_stream_arrives_whole_and_in_order(front: Front) -> None:
    process = front.start([sys.executable, "-c", GENERATOR, str(BLOCKS), "0"])
    assert hashlib.sha256(b"".join(pieces(process))).hexdigest() == expected()
    assert process.wait() == 0


def test_a_terminal_has_the_size_that_it_was_given(front: Front) -> None:
    process = front.start(["sh", "-c", "echo ready; read line; stty size; echo got:$line"], tty=True)
    output_until(process, b"ready")
    process.resize(40, 100)
    process.write(b"hello\n")
    rest = b"".join(pieces(process))
    assert b"40 100\r\n" in rest
    assert b"got:hello\r\n" in rest
    assert process.wait() == 0


def test_input_ends_when_it_is_closed(front: Front) -> None:
    process = front.start(["wc", "-c"], pipe_stdin=True)
    for _ in range(20):
        process.write(b"x" * 1000)
    process.close_stdin()
    assert b"".join(pieces(process)).strip() == b"20000"
    assert process.wait() == 0


def test_files_are_written_read_listed_and_removed(front: Front, tmp_path: Path) -> None:
    data = random.Random(3).randbytes(1_500_000)
    path = str(tmp_path / "a file")
    front.write_file(path, data)
    assert Path(path).read_bytes() == data
    assert front.read_file(path) == data
    (tmp_path / "another").write_bytes(b"")
    assert front.names(str(tmp_path)) == ["a file", "another"]
    front.remove(path)
    assert front.names(str(tmp_path)) == ["another"]
    with pytest.raises(NotFoundError) as missing:
        front.read_file(path)
    assert missing.value.code == -32004


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which long messages have gone and come without base64 here, in their order."""
    found: list[str] = []
    make, take = lifting.binary_form, lifting._apart

    def noted_form(text: bytes, data: bytes) -> bytes | None:
        form = make(text, data)
        found.append("sent" if form is not None else "sent as base64")
        return form

    def noted_parts(message: bytes) -> lifting.Lifted | None:
        lifted = take(message)
        found.append("received" if lifted is not None else "received as it is none")
        return lifted

    monkeypatch.setattr(lifting, "binary_form", noted_form)
    monkeypatch.setattr(lifting, "_apart", noted_parts)
    return found


def test_a_large_file_goes_in_pieces_and_comes_in_blocks_without_base64(
    front: Front, tmp_path: Path, forms: list[str]
) -> None:
    data = random.Random(5).randbytes(5 * MEBIBYTE)
    whole = FsWriteEntry(name=b"big", kind=FsNodeKind.FILE, part=b"part", size=len(data), mode=0o640)
    pieces = [
        msgspec.structs.replace(whole, offset=at, content=data[at : at + MEBIBYTE])
        for at in range(0, len(data), MEBIBYTE)
    ]
    front.write_parts(str(tmp_path), pieces)
    assert ((tmp_path / "big").read_bytes(), os.listdir(tmp_path)) == (data, ["big"])
    assert (tmp_path / "big").stat().st_mode & 0o777 == 0o640
    assert forms == ["sent"] * 5
    assert b"".join(front.read_blocks(str(tmp_path / "big"))) == data
    assert forms[5:] == ["received"] * 5


def test_a_piece_that_does_not_fit_is_refused_and_leaves_the_file(front: Front, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"as it was")
    far = FsWriteEntry(
        name=b"big", kind=FsNodeKind.FILE, part=b"part", size=MEBIBYTE, offset=10, content=b"x"
    )
    with pytest.raises(RequestFailed, match="bytes are missing before offset 10"):
        front.write_parts(str(tmp_path), [far])
    assert (tmp_path / "big").read_bytes() == b"as it was"
    assert front.run(["true"], b"") == Done(0, b"", b"")


@pytest.mark.parametrize("size", [5, 16 << 20])
def test_first_bytes_of_a_connection_come_before_all_others(front: Front, size: int) -> None:
    """Of many the kernel does not take all at once."""
    first = random.Random(4).randbytes(size)
    with socket.create_server(("127.0.0.1", 0)) as there, ThreadPoolExecutor(1) as beside:
        there.settimeout(WAIT_S)

        def echo() -> int:
            with there.accept()[0] as far:
                got = b"".join(iter(lambda: far.recv(1 << 20), b""))
                far.sendall(hashlib.sha256(got).digest())
                return len(got)

        echoed = beside.submit(echo)
        connection = front.connection(there.getsockname()[1], first)
        connection.write(b"more")
        connection.write_eof()
        digest = b"".join(iter(connection.read, b""))
        assert echoed.result(WAIT_S) == size + 4
        assert digest == hashlib.sha256(first + b"more").digest()
        connection.close()


def test_a_process_is_killed_and_signalled(front: Front) -> None:
    process = front.start(["sleep", "1000"])
    assert process.terminate()
    assert list(pieces(process)) == []
    assert process.wait() != 0
    script = "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.01; done"
    trapping = front.start(["sh", "-c", script])
    output_until(trapping, b"ready")
    trapping.signal("interrupt")
    output_until(trapping, b"caught")
    assert trapping.wait() == 7


def test_a_cut_in_the_middle_of_a_stream_loses_nothing(front: Front, place: Place) -> None:
    process = front.start([sys.executable, "-c", GENERATOR, str(BLOCKS), "0.05"])
    digest = hashlib.sha256()
    seen = 0
    for piece in pieces(process):
        digest.update(piece)
        seen += len(piece)
        if seen > 1 << 19:
            seen = -1 << 40
            place.cut()
    assert digest.hexdigest() == expected()
    assert process.wait() == 0
    assert front.resumptions() == (0 if place.keeps_streams else 1)
    assert front.run(["echo", "on"], b"") == Done(0, b"on\n", b"")
