"""The small parts by themselves: tokens, fair queue, buckets, limits, metrics, keys."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from execserver.relay import tokens
from execserver.relay.fair_queue import FairQueue
from execserver.relay.keys import InvalidKey, fingerprint_of, key_text
from execserver.relay.limits import Bucket, LimitError, Limits
from execserver.relay.metrics import Metrics
from execserver.relay.send_queue import SendQueue
from execserver.relay.ws_frames import binary_header
from tests.support.relay_process import key_object


def test_a_token_is_found_by_its_text_only(tmp_path: Path) -> None:
    path = str(tmp_path / "sub" / "tokens.json")
    token, text = tokens.create(path, "box", tokens.EXECUTOR)
    book = tokens.TokenBook(path)
    assert book.find(text) == token
    assert token.allows(tokens.EXECUTOR)
    assert not token.allows(tokens.HARNESS)
    wrong = text[:-1] + ("A" if text[-1] != "A" else "B")
    for other in ("", wrong, text + "x", f"esr-{token.id}-", "é"):
        assert book.find(other) is None
    assert text.encode() not in Path(path).read_bytes()
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_changes_at_once_are_all_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens.json")
    threads = [threading.Thread(target=tokens.create, args=(path, f"box-{n}", "both")) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {token.environment_id for token in tokens.read(path)} == {f"box-{n}" for n in range(8)}
    assert [name for name in os.listdir(tmp_path) if name != "tokens.json"] == []


def test_revoking_is_noticed_by_a_book_that_looks(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens.json")
    token, text = tokens.create(path, "box", "both")
    book = tokens.TokenBook(path)
    assert not book.reload(changed_only=True)
    assert tokens.revoke(path, token.id)
    assert not tokens.revoke(path, token.id)
    assert book.reload(changed_only=True)
    assert book.find(text) is None
    assert not book.holds(token.id)


@pytest.mark.parametrize("content", ["", "[]", '{"tokens": [{}]}', '{"tokens": 1}', "\xff"])
def test_a_file_that_holds_no_tokens_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(content, encoding="latin-1")
    path.chmod(0o600)
    with pytest.raises(tokens.TokenFileError, match="not a token file"):
        tokens.read(str(path))


def test_a_file_others_may_write_to_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    tokens.create(str(path), "box", "both")
    path.chmod(0o622)
    with pytest.raises(tokens.TokenFileError, match="somebody else may write to it"):
        tokens.read(str(path))


def test_senders_take_turns() -> None:
    queue = FairQueue()
    for number in range(3):
        queue.push("a", b"a%d" % number)
    queue.push("b", b"b0")
    queue.push("c", b"c0")
    queue.push("b", b"b1")
    assert (queue.size, queue.size_of("a"), queue.size_of("nobody")) == (12, 6, 0)
    assert [queue.pop() for _ in range(6)] == [b"a0", b"b0", b"c0", b"a1", b"b1", b"a2"]
    assert not queue
    assert queue.size == 0


def test_what_goes_into_line_at_once_keeps_the_order_of_turns() -> None:
    """The short way of a message where nothing waits, against the turns of a plain queue."""
    chance = random.Random(4)
    for _ in range(500):
        queue, turns, expected = SendQueue(), FairQueue(), []
        for number in range(20):
            message = bytes((number,)) * chance.choice([1, 10, 126, 4095, 4096, 5000])
            turn = chance.choice("abc")
            queue.push(turn, message)
            if number == 0 and len(message) < 4096:
                expected.append(binary_header(len(message)) + message)  # as if it were written by now
            else:
                turns.push(turn, message)
        while turns:
            message = turns.pop()
            expected.append(binary_header(len(message)) + message)
        assert queue.fill(everything=True)
        written = b"".join(queue.line)
        assert written == b"".join(expected)
        while queue.line:  # written in pieces, nothing is left over
            queue.took(min(len(queue.line[0]), chance.choice([1, 1000, 5000])))
        assert not queue.fill()


def test_a_bucket_lets_its_size_through_and_then_its_rate() -> None:
    bucket = Bucket(10, 20, now=0.0)
    assert bucket.take(20, 0.0) == 0.0
    assert bucket.take(5, 0.0) == 0.5
    assert bucket.take(0, 0.5) == 0.0
    assert bucket.take(20, 100.0) == 0.0
    assert not bucket.allows(100.0)
    assert bucket.allows(100.2)


def test_limits_are_changed_by_tests_only_with_what_they_are() -> None:
    assert Limits().changed_by({}) == Limits()
    assert Limits().changed_by({"EXECSERVER_RELAY_LIMITS": '{"streams": 3}'}).streams == 3
    for text in ("{", '{"nothing": 1}', '{"streams": "x"}'):
        with pytest.raises(LimitError):
            Limits().changed_by({"EXECSERVER_RELAY_LIMITS": text})


def test_the_metrics_page_is_what_prometheus_reads() -> None:
    metrics = Metrics()
    metrics.count("requests", "register", "200")
    metrics.count("requests", "register", "200")
    metrics.frames["to_executor"] += 5
    page = metrics.page({"streams": ("Streams", 3)}).decode()
    assert page.endswith("\n")
    assert 'execserver_relay_requests_total{call="register",status="200"} 2\n' in page
    assert 'execserver_relay_frames_total{direction="to_executor"} 5\n' in page
    assert "# TYPE execserver_relay_streams gauge\nexecserver_relay_streams 3\n" in page
    for line in page.splitlines():
        assert line.startswith("# ") or len(line.split(" ")) == 2, line


def test_a_key_keeps_its_order_and_its_fingerprint() -> None:
    key = key_object(7)
    shuffled = dict(reversed(key.items()))
    assert key_text(shuffled) == key_text(key)
    assert fingerprint_of(key_text(key)) != fingerprint_of(key_text(key_object(8)))
    wrongs: list[object] = [None, [], {}, {**key, "suite": "other"}, {**key, "x25519_public_key": 5}]
    for wrong in wrongs:
        with pytest.raises(InvalidKey):
            key_text(wrong)
