"""`--concurrent-requests N`: which answers overtake others, and that effects never do."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.support.accounts import own_cache
from tests.support.newest import environment_in, lines_of, make_files
from tests.support.peer import Peer
from tests.support.running import start
from tests.support.server_process import ServerProcess, base_environment
from tests.support.stdio_peer import StdioPeer

WAIT_MS = {"60-concurrent-requests-1": 30, "61-concurrent-requests-4": 300}  # 1500 in the recording
OWN_MEMBERS = ("oldestSeq", "lostBytes")
INITIALIZE = {"id": 1, "method": "initialize", "params": {"clientName": "x"}}


def replay(name: str, root: Path, count: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Send all recorded requests, with shorter waits; return the recorded answers and ours, in order.

    The recorder kept only a part of the answers to the last requests.
    """
    lines = lines_of(name, root)
    make_files(root, {})
    wanted, got = [], []
    env = base_environment() | own_cache() | environment_in(root)
    options = ("--concurrent-requests", count)
    with ServerProcess(listen="stdio", env=env, cwd=root / "cwd", options=options) as server:
        with server.stdio() as peer:
            assert isinstance(peer, StdioPeer)
            for line in lines[1:]:
                message = line["msg"]
                if line["dir"] == ">":
                    if "waitMs" in message.get("params", {}):
                        message["params"]["waitMs"] = WAIT_MS[name]
                    peer.send(message)
                elif message.get("id", 220) < 220:
                    wanted.append(message)
                    got.append(next_answer(peer))
            later = [
                line["msg"]["id"] for line in lines if line["dir"] == ">" and line["msg"].get("id", 0) > 19
            ]
            assert sorted(next_answer(peer, below=1000)["id"] for _ in later) == later
            output = read_all(peer, "c", 80)
        server.close_stdin()
        server.wait()
    assert output == b"".join(b"%03d\n" % number for number in range(20))
    return wanted, got


def next_answer(peer: Peer, below: int = 220) -> dict[str, Any]:
    while True:
        message = peer.receive()
        assert message is not None
        if "id" in message:
            assert message["id"] < below
            return message


def read_all(peer: Peer, process: str, size: int) -> bytes:
    """Return so many bytes of a process's output."""
    found, after = b"", 0
    for number in range(1000, 1200):
        params = {"processId": process, "afterSeq": after, "waitMs": 200}
        peer.send({"id": number, "method": "process/read", "params": params})
        for chunk in next_answer(peer, below=number + 1)["result"]["chunks"]:
            found += base64.b64decode(chunk["chunk"])
            after = chunk["seq"]
        if len(found) >= size:
            break
    return found


def as_recorded(message: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without what describes a machine, and without our own members of a page."""
    if message["id"] == 1:
        return {"id": 1}
    result = {name: value for name, value in message["result"].items() if name not in OWN_MEMBERS}
    return {"id": message["id"], "result": result}


@pytest.mark.ours_only("its own options")
def test_with_one_at_a_time_long_polls_hold_up_what_follows_as_recorded(tmp_path: Path) -> None:
    wanted, got = replay("60-concurrent-requests-1", tmp_path, "1")
    assert list(map(as_recorded, got)) == list(map(as_recorded, wanted))
    assert (tmp_path / "ws/g").read_bytes() == b"18"


@pytest.mark.ours_only("its own options")
def test_with_more_answers_overtake_long_polls_as_recorded_and_effects_nothing(tmp_path: Path) -> None:
    wanted, got = replay("61-concurrent-requests-4", tmp_path, "4")

    def by_id(messages: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
        return {message["id"]: as_recorded(message) for message in messages}

    assert by_id(got) == by_id(wanted)
    # Long polls that end together come in any order, there as here; in between all is as recorded.
    fast = {4: 3, 7: 5, 12: 8, 18: 13, 19: 13}
    order = [message["id"] for message in got]
    assert all(order.index(quick) < order.index(poll) for quick, poll in fast.items())
    assert (tmp_path / "ws/g").read_bytes() == b"19"


@pytest.fixture
def four(tmp_path: Path) -> Any:
    with ServerProcess(listen="stdio", options=("--concurrent-requests", "4")) as server:
        with server.stdio() as peer:
            yield peer
        server.close_stdin()
        server.wait()


def test_what_comes_before_initialized_is_refused_as_ever(four: StdioPeer) -> None:
    asked = {"method": "fs/getMetadata", "params": {"path": "file:///"}}
    for message in (INITIALIZE, {"id": 2, **asked}, {"method": "initialized"}, {"id": 3, **asked}):
        four.send(message)
    answers = {answer["id"]: answer for answer in (next_answer(four) for _ in range(3))}
    text = "client must send initialized before using filesystem methods"
    assert answers[2]["error"]["message"] == text
    assert answers[3]["result"]["isDirectory"]


def test_pipelined_effects_keep_their_order(four: StdioPeer, tmp_path: Path) -> None:
    """200 writes to one process, and 50 to one file: the reference reorders both."""
    four.send(INITIALIZE)
    four.send({"method": "initialized"})
    next_answer(four)
    start(four, "p", "exec cat", pipeStdin=True)
    file = f"file://{tmp_path}/f"
    for number in range(200):
        chunk = base64.b64encode(b"%03d\n" % number).decode()
        params = {"processId": "p", "chunk": chunk, "writeId": f"w{number}"}
        four.send({"id": 200 + number, "method": "process/write", "params": params})
        if number % 4 == 0:
            data = base64.b64encode(b"%d" % number * 1000).decode()
            four.send(
                {"id": 600 + number, "method": "fs/writeFile", "params": {"path": file, "dataBase64": data}}
            )
            four.send({"id": 400 + number, "method": "fs/readFile", "params": {"path": file}})
    answers = {answer["id"]: answer for answer in (next_answer(four, below=800) for _ in range(300))}
    assert len(answers) == 300
    for number in range(0, 200, 4):
        assert base64.b64decode(answers[400 + number]["result"]["dataBase64"]) == b"%d" % number * 1000
    assert (tmp_path / "f").read_bytes() == b"196" * 1000
    assert read_all(four, "p", 800) == b"".join(b"%03d\n" % number for number in range(200))
    four.send({"id": 2000, "method": "process/terminate", "params": {"processId": "p"}})
    next_answer(four, below=3000)
