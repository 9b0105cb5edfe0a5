"""The player itself: what it must not let pass, and what it must."""

from __future__ import annotations

import json
import signal
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from tests.support import transcript
from tests.support.differences import Differences
from tests.support.peer import Message, Peer, PeerTimeout
from tests.support.replay import Replay
from tests.support.scene import Scene

NAME = "little"


class ScriptedPeer(Peer):
    """A server that answers request ids from a table, with any number of messages each."""

    def __init__(self, answers: dict[Any, list[Message]]) -> None:
        super().__init__()
        self.answers = answers
        self.queue: deque[bytes] = deque()

    def send_text(self, text: str | bytes) -> None:
        """Queue the answers to this message."""
        for message in self.answers.get(json.loads(text).get("id"), []):
            self.queue.append(json.dumps(message).encode())

    def receive_text(self, timeout: float = 0) -> bytes | None:
        """Return the next answer."""
        if not self.queue:
            raise PeerTimeout("nothing")
        return self.queue.popleft()

    def close(self) -> None:
        """Nothing is held."""


class ScriptedStage:
    """Opens scripted peers."""

    def __init__(self, answers: dict[Any, list[Message]]) -> None:
        self.answers = answers

    def open(self, conn: str) -> Peer:
        """Open a peer."""
        return ScriptedPeer(self.answers)

    def signal(self, number: signal.Signals) -> None:
        """There is no process."""


START = {"processId": "p", "argv": ["x"], "cwd": "file:///", "env": {}, "tty": False}
RECORDED: list[dict[str, Any]] = [
    {"dir": "c2s", "conn": "a", "msg": {"id": 1, "method": "process/start", "params": START}},
    {"dir": "s2c", "conn": "a", "msg": {"id": 1, "result": {"processId": "p"}}},
    {"dir": "s2c", "conn": "a", "msg": {"method": "process/output", "params": {}}},
    {"dir": "s2c", "conn": "a", "msg": {"method": "process/exited", "params": {}}},
    {"dir": "s2c", "conn": "a", "msg": {"method": "process/closed", "params": {}}},
]


def note(name: str, seq: int, **more: object) -> Message:
    """A notification of process p."""
    return {"method": f"process/{name}", "params": {"processId": "p", "seq": seq, **more}}


def output(seq: int, chunk: str) -> Message:
    """An output notification; the chunk in base64."""
    return note("output", seq, stream="stdout", chunk=chunk)


START_REPLY: Message = {"id": 1, "result": {"processId": "p"}}
GOOD = [output(1, "YWI="), note("exited", 2, exitCode=0), note("closed", 3)]


@pytest.fixture
def little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transcript of one process that prints `ab` and exits."""
    lines = [*RECORDED[:2], *({"dir": "s2c", "conn": "a", "msg": message} for message in GOOD)]
    (tmp_path / f"{NAME}.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    monkeypatch.setattr(transcript, "FOLDER", tmp_path)


def play(answer: list[Message], table: dict[str, Any] | None = None) -> list[str]:
    """Replay the little transcript against one list of messages."""
    differences = Differences(NAME, table or {})
    stage = ScriptedStage({1: answer})
    return Replay(NAME, stage, Scene(), differences).run() + differences.unused()


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize(
    "notifications",
    [
        GOOD,
        [output(1, "YQ=="), output(2, "Yg=="), note("exited", 3, exitCode=0), note("closed", 4)],
        [note("exited", 1, exitCode=0), output(2, "YWI="), note("closed", 3)],
        [note("exited", 2, exitCode=0), output(1, "YWI="), note("closed", 3)],
    ],
    ids=["as recorded", "cut elsewhere", "late output", "overtaken"],
)
def test_what_timing_decides_is_let_pass(notifications: list[Message]) -> None:
    assert play([START_REPLY, *notifications]) == []


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ([START_REPLY, output(1, "YWM="), *GOOD[1:]], "stdout of p"),
        ([START_REPLY, *GOOD[:1], note("exited", 2, exitCode=1), GOOD[2]], "'exitCode': 1"),
        ([START_REPLY, output(1, "YWI="), note("exited", 3, exitCode=0), note("closed", 4)], "seqs"),
        ([START_REPLY, *GOOD[:2], note("closed", 2)], "seqs"),
        ([{"id": 1, "result": {"processId": "p", "extra": 1}}, *GOOD], "members"),
        ([{"id": 1, "result": {"processId": "q"}}, *GOOD], "'q' instead of 'p'"),
        ([{"result": {"processId": "p"}, "id": 1}, *GOOD], "members ['result', 'id']"),
        ([START_REPLY, *GOOD, START_REPLY], "reply nobody recorded"),
        ([START_REPLY, *GOOD, output(4, "YQ==")], "sent 4 messages"),
    ],
    ids=["bytes", "exit code", "gap", "seq twice", "member", "value", "member order", "second reply", "late"],
)
def test_a_real_difference_is_reported(answer: list[Message], complaint: str) -> None:
    assert complaint in "\n".join(play(answer))


@pytest.mark.usefixtures("little")
def test_a_difference_in_the_table_is_let_pass_and_an_unneeded_entry_is_not() -> None:
    entry = {"transcript": NAME, "keys": ["a:1"], "reason": "r", "reply": '{"result":{"processId":"q"}}'}
    table = {"reply": [entry]}
    assert play([{"id": 1, "result": {"processId": "q"}}, *GOOD], table) == []
    assert play([START_REPLY, *GOOD], table) == ["differences.toml: entry a:1 is not needed"]
    wrong = play([{"id": 1, "result": {"processId": "r"}}, *GOOD], table)
    assert wrong == ["line 2 a:1: process/start: result.processId: 'r' instead of 'q'"]
