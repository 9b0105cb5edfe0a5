"""What is written to a process: whole, in order, once, and never at the cost of others."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from pathlib import Path

import pytest

from tests.support.peer import Json, RemoteError
from tests.support.running import (
    Outcome,
    outcome,
    output_until,
    read,
    run,
    start,
    start_params,
    terminate,
    write,
)
from tests.support.ws_peer import TEXT, WsPeer, client_frame

PIECE = 64 * 1024


def send_write(peer: WsPeer, call_id: int, data: bytes, write_id: str) -> None:
    """Send a write without waiting for its answer."""
    peer.send(write_request(call_id, data, write_id))


def write_request(call_id: int, data: bytes, write_id: str) -> Json:
    params = {"processId": "p", "chunk": base64.b64encode(data).decode(), "writeId": write_id}
    return {"id": call_id, "method": "process/write", "params": params}


def close_stdin(peer: WsPeer, process_id: str = "p") -> Json:
    return peer.call("process/closeStdin", {"processId": process_id})["status"]


def test_writes_arrive_whole_and_in_order(peer: WsPeer) -> None:
    start(peer, "p", ["head", "-c", str(300 * 1000)], pipeStdin=True)
    pieces = [bytes([number % 256]) * 1000 for number in range(300)]
    for number, piece in enumerate(pieces):
        send_write(peer, 1000 + number, piece, f"w{number}")
    statuses = [peer.take({"id": 1000 + number})["result"]["status"] for number in range(300)]
    assert statuses == ["accepted"] * 300
    assert outcome(peer, "p").stdout == b"".join(pieces)


def test_a_repeated_write_is_not_written_twice(peer: WsPeer) -> None:
    start(peer, "p", ["head", "-c", "6"], pipeStdin=True)
    for write_id in ("a", "a", "b", "a", "b", "c"):
        assert write(peer, "p", {"a": b"11", "b": b"22", "c": b"33"}[write_id], write_id) == "accepted"
    assert outcome(peer, "p").stdout == b"112233"


def test_a_write_id_is_remembered_although_the_bytes_differ(peer: WsPeer) -> None:
    start(peer, "p", ["head", "-c", "2"], pipeStdin=True)
    write(peer, "p", b"1", "a")
    write(peer, "p", b"2", "a")
    write(peer, "p", b"3", "b")
    assert outcome(peer, "p").stdout == b"13"


def test_an_empty_write_is_accepted(peer: WsPeer) -> None:
    start(peer, "p", ["head", "-c", "1"], pipeStdin=True)
    assert write(peer, "p", b"", "a") == "accepted"
    assert write(peer, "p", b"x", "b") == "accepted"
    assert outcome(peer, "p").stdout == b"x"


def test_an_empty_write_id_is_refused_before_the_process_is_looked_up(peer: WsPeer) -> None:
    with pytest.raises(RemoteError, match=r"^-32602: writeId must not be empty$"):
        write(peer, "nobody", b"x", "")


def test_who_takes_no_input_says_so(peer: WsPeer) -> None:
    assert write(peer, "nobody", b"x", "a") == "unknownProcess"
    run(peer, "p", "cat")
    assert write(peer, "p", b"x", "a") == "stdinClosed"


def test_without_piped_input_a_process_reads_nothing(peer: WsPeer) -> None:
    assert run(peer, "p", "wc -c; readlink /proc/self/fd/0").stdout == b"0\n/dev/null\n"


def test_writes_to_the_dead_are_accepted_and_vanish(peer: WsPeer) -> None:
    run(peer, "p", "exit 0", pipeStdin=True)
    for number in range(5):
        assert write(peer, "p", b"x" * PIECE, f"w{number}") == "accepted"


def test_who_closes_its_input_harms_nobody(peer: WsPeer) -> None:
    collected = Outcome()
    start(peer, "p", "exec 0<&-; echo closed; exec sleep 100", pipeStdin=True)
    output_until(peer, "p", b"closed", collected)
    for number in range(5):
        assert write(peer, "p", b"x" * PIECE, f"w{number}") == "accepted"
    assert terminate(peer, "p")
    outcome(peer, "p", collected)


@pytest.mark.ours_only("there a full queue delays everything")
def test_a_child_that_does_not_read_delays_nobody(peer: WsPeer, tmp_path: Path) -> None:
    collected = Outcome()
    go = shlex.quote(str(tmp_path / "go"))
    start(peer, "p", f"while [ ! -e {go} ]; do sleep 0.01; done; exec md5sum", pipeStdin=True)
    pieces = [bytes([number]) * PIECE for number in range(200)]
    for number, piece in enumerate(pieces):
        send_write(peer, 1000 + number, piece, f"w{number}")
    peer.call("environment/info")
    unanswered = 200 - sum(1000 <= message.get("id", 0) < 1200 for message in peer.kept)
    assert unanswered > 0  # the bound: more is held by the client
    (tmp_path / "go").touch()
    answers = [peer.take({"id": 1000 + number})["result"]["status"] for number in range(200)]
    assert answers == ["accepted"] * 200
    assert close_stdin(peer) == "accepted"
    assert (
        outcome(peer, "p", collected).stdout.split()[0].decode() == hashlib.md5(b"".join(pieces)).hexdigest()
    )


@pytest.mark.ours_only("there a full queue delays everything")
def test_terminate_answers_the_writes_that_wait(peer: WsPeer) -> None:
    start(peer, "p", ["sleep", "100"], pipeStdin=True)
    for number in range(200):
        send_write(peer, 1000 + number, b"x" * PIECE, f"w{number}")
    assert terminate(peer, "p")
    for number in range(200):
        reply = peer.take({"id": 1000 + number})
        assert reply.get("result", {}).get("status") == "accepted" or reply["error"]["code"] == -32603


@pytest.mark.ours_only("an extension")
class TestCloseStdin:
    """`process/closeStdin`."""

    def test_a_pipe_reader_sees_the_end_behind_what_was_written(self, peer: WsPeer) -> None:
        start(peer, "p", ["wc", "-c"], pipeStdin=True)
        for number in range(200):
            send_write(peer, 1000 + number, b"x" * PIECE, f"w{number}")
        assert close_stdin(peer) == "accepted"
        assert outcome(peer, "p").stdout == b"%d\n" % (200 * PIECE)

    def test_what_was_asked_for_before_it_is_written_where_the_queue_is_full(
        self, peer: WsPeer, tmp_path: Path
    ) -> None:
        collected, number = Outcome(), 200
        go = shlex.quote(str(tmp_path / "go"))
        start(peer, "p", f"while [ ! -e {go} ]; do sleep 0.01; done; exec wc -c", pipeStdin=True)
        for sent in range(number):
            send_write(peer, 1000 + sent, b"x" * PIECE, f"w{sent}")
        # All in one piece: the server handles them in a row, before any of them waits for room.
        last = [write_request(2000 + sent, b"y", f"y{sent}") for sent in range(3)]
        ending = {"id": 3000, "method": "process/closeStdin", "params": {"processId": "p"}}
        late = write_request(4000, b"late", "late")
        messages = [*last, ending, late]
        peer.send_raw(b"".join(client_frame(TEXT, json.dumps(message).encode()) for message in messages))
        assert peer.take({"id": 1000})["result"]["status"] == "accepted"
        (tmp_path / "go").touch()
        answers = {id: peer.take({"id": id})["result"]["status"] for id in (2000, 2001, 2002, 3000, 4000)}
        assert answers.pop(4000) == "stdinClosed"
        assert set(answers.values()) == {"accepted"}
        assert outcome(peer, "p", collected).stdout == b"%d\n" % (number * PIECE + 3)

    def test_a_terminal_reader_sees_the_end(self, peer: WsPeer) -> None:
        start(peer, "p", "stty -echo; cat; echo over", tty=True)
        write(peer, "p", b"line\n", "w")
        collected = Outcome()
        output_until(peer, "p", b"line", collected)
        assert close_stdin(peer) == "accepted"
        assert outcome(peer, "p", collected).pty.endswith(b"over\r\n")

    def test_it_may_be_pipelined_behind_the_start(self, peer: WsPeer) -> None:
        for number in range(20):
            params = start_params("p", ["cat"], pipeStdin=True) | {"processId": f"p{number}"}
            peer.send({"id": 1000 + number, "method": "process/start", "params": params})
            chunk = {"processId": f"p{number}", "chunk": "eA==", "writeId": "w"}
            peer.send({"id": 2000 + number, "method": "process/write", "params": chunk})
            end = {"processId": f"p{number}"}
            peer.send({"id": 3000 + number, "method": "process/closeStdin", "params": end})
        for number in range(20):
            assert outcome(peer, f"p{number}").stdout == b"x"

    def test_after_it_nothing_is_taken(self, peer: WsPeer) -> None:
        start(peer, "p", ["sleep", "100"], pipeStdin=True)
        assert close_stdin(peer) == "accepted"
        assert close_stdin(peer) == "stdinClosed"
        assert write(peer, "p", b"x", "w") == "stdinClosed"
        assert terminate(peer, "p")

    def test_who_has_no_input_says_so(self, peer: WsPeer) -> None:
        assert close_stdin(peer, "nobody") == "unknownProcess"
        run(peer, "p", "exit 0")
        assert close_stdin(peer) == "stdinClosed"

    def test_the_exit_code_after_it_is_the_programs_own(self, peer: WsPeer) -> None:
        start(peer, "p", "cat; exit 9", pipeStdin=True)
        close_stdin(peer)
        assert outcome(peer, "p").exit_code == 9
        assert read(peer, "p")["exitCode"] == 9
