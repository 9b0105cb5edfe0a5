from __future__ import annotations

from typing import Any

import gevent
import pytest

from execserver.core.process_state import REMEMBERED_WRITE_IDS
from execserver.handlers.replies import Reply
from execserver.services.running.stdin_queue import QUEUED_WRITES
from tests.handlers.asking import Client
from tests.handlers.processes import (
    ACCEPTED,
    STARTING,
    STDIN_CLOSED,
    UNKNOWN,
    WRITE_FAILED,
    b64,
    start,
    started,
    write,
)
from tests.services.fakes import FakeRun
from tests.support.greenlets import turns
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("loop_failures")


def test_input_is_written_once_per_id(asking: Client) -> None:
    run = started(asking, pipeStdin=True)
    assert write(asking, b"once", "1") == ACCEPTED
    assert write(asking, b"again", "1") == ACCEPTED
    assert write(asking, b"!", "2") == ACCEPTED
    assert run.read() == b"once!"


def test_a_write_is_answered_before_its_bytes_are_written(asking: Client) -> None:
    run = started(asking, pipeStdin=True)
    params = {"processId": "p", "chunk": b64(b"x"), "writeId": "1"}
    answer = asking.answer("process/write", params)
    assert isinstance(answer, Reply)
    assert answer.leaves_first
    process = asking.call.session.processes.find("p")
    assert process is not None
    assert "1" not in process.state.writes
    answer.then()
    assert list(process.state.writes) == ["1"]
    assert run.read() == b"x"


def test_without_an_id_every_write_counts(asking: Client) -> None:
    run = started(asking, pipeStdin=True)
    assert [write(asking, b"x", None) for _ in range(3)] == [ACCEPTED] * 3
    assert run.read() == b"xxx"


def test_the_newest_ids_are_remembered(asking: Client) -> None:
    run = started(asking, pipeStdin=True)
    for number in range(REMEMBERED_WRITE_IDS + 1):
        write(asking, b"", str(number))
    assert write(asking, b"remembered", "1") == ACCEPTED
    assert write(asking, b"forgotten", "0") == ACCEPTED
    assert run.read() == b"forgotten"


def test_an_empty_id_is_refused_before_anything_else(asking: Client) -> None:
    assert write(asking, b"", "", "nope") == (-32602, "writeId must not be empty")


def test_writes_that_cannot_be(asking: Client) -> None:
    assert write(asking, b"x", "1", "nope") == UNKNOWN
    run = started(asking)
    assert write(asking, b"x") == STDIN_CLOSED
    run.end()
    assert write(asking, b"x") == STDIN_CLOSED


def test_a_process_that_starts_takes_no_input_yet(asking: Client) -> None:
    asking.server.spawner.answers.clear()
    starting = gevent.spawn(start, asking)
    turns()
    assert write(asking, b"x") == STARTING
    assert asking.ask("process/closeStdin", processId="p") == STARTING
    assert asking.ask("process/read", processId="p") == (-32600, "process id p is starting")
    assert asking.ask("process/terminate", processId="p") == {"running": False}
    asking.server.spawner.answers.set()
    assert starting.get(timeout=20)["processId"] == "p"


def test_input_of_a_process_that_has_exited_vanishes(asking: Client) -> None:
    started(asking, pipeStdin=True).end()
    assert write(asking, b"x") == ACCEPTED


def test_after_a_terminate_only_what_was_accepted_before_is(asking: Client) -> None:
    for tty in (False, True):
        process_id = f"tty {tty}"
        run = started(asking, process_id, tty=tty, pipeStdin=True)
        assert write(asking, b"x", "1", process_id) == ACCEPTED
        assert asking.ask("process/terminate", processId=process_id) == {"running": True}
        for _ in range(2):
            assert write(asking, b"x", "1", process_id) == ACCEPTED
            assert write(asking, b"x", "2", process_id) == WRITE_FAILED
            if not run.child.exited:
                run.end(9)


def fill_input(client: Client, process_id: str = "p") -> None:
    """Bring the input of a process that does not read to its bound."""
    process = client.call.session.processes.known(process_id)
    assert process.stdin is not None
    assert process.stdin.put(b"#" * 100_000)
    for _ in range(QUEUED_WRITES):
        if process.stdin.has_room:
            assert process.stdin.put(b"#")
    assert not process.stdin.has_room


def read_input(run: FakeRun, end: bytes) -> bytes:
    """Read the input until it ends like that; return it without the filling."""
    data = b""

    def complete() -> bool:
        nonlocal data
        data += run.read()
        return data.endswith(end)

    wait_until(complete, pause=gevent.sleep)
    return data.lstrip(b"#")


def ask_write(client: Client, data: bytes, write_id: str) -> gevent.Greenlet[..., Any]:
    return client.ask_later("process/write", processId="p", chunk=b64(data), writeId=write_id)


def test_at_the_bound_writes_wait_in_their_order(asking: Client) -> None:
    run = started(asking, pipeStdin=True)
    fill_input(asking)
    waiting = [ask_write(asking, b"<%d>" % number, str(number)) for number in range(3)]
    assert not any(each.ready() for each in waiting)
    assert read_input(run, b"<2>") == b"<0><1><2>"
    assert [each.get(timeout=20) for each in waiting] == [ACCEPTED] * 3


def test_a_repeat_of_a_write_that_waits_is_written_once(asking: Client) -> None:
    run = started(asking, pipeStdin=True)
    fill_input(asking)
    waiting = [ask_write(asking, b"<once>", "1"), ask_write(asking, b"<once>", "1")]
    waiting.append(ask_write(asking, b"<end>", "2"))
    assert read_input(run, b"<end>") == b"<once><end>"
    assert [each.get(timeout=20) for each in waiting] == [ACCEPTED] * 3


def test_a_repeat_of_a_write_that_was_given_up_is_written(asking: Client) -> None:
    """Its client left before it was answered, and is back."""
    run = started(asking, pipeStdin=True)
    fill_input(asking)
    ask_write(asking, b"<given up>", "1").kill()
    repeated = ask_write(asking, b"<repeated>", "1")
    assert read_input(run, b"<repeated>") == b"<repeated>"
    assert repeated.get(timeout=20) == ACCEPTED


def test_a_write_that_waits_fails_with_a_terminate(asking: Client) -> None:
    started(asking, pipeStdin=True)
    fill_input(asking)
    waiting = ask_write(asking, b"x", "1")
    asking.ask("process/terminate", processId="p")
    assert waiting.get(timeout=20) == WRITE_FAILED
    assert write(asking, b"x", "1") == WRITE_FAILED


def test_a_write_that_waits_for_a_process_that_exits_vanishes(asking: Client) -> None:
    run = started(asking, pipeStdin=True)
    fill_input(asking)
    waiting = ask_write(asking, b"x", "1")
    run.end()
    assert waiting.get(timeout=20) == ACCEPTED


# process/closeStdin


def test_input_ends_behind_what_was_written(asking: Client) -> None:
    run = started(asking, pipeStdin=True)
    write(asking, b"last", "1")
    assert asking.ask("process/closeStdin", processId="p") == ACCEPTED
    assert (run.read(), run.read()) == (b"last", b"")
    assert asking.ask("process/closeStdin", processId="p") == STDIN_CLOSED
    assert write(asking, b"x", "2") == STDIN_CLOSED
    assert write(asking, b"last", "1") == ACCEPTED  # a repeat


def test_input_ends_behind_writes_that_wait(asking: Client) -> None:
    run = started(asking, pipeStdin=True)
    fill_input(asking)
    waiting = ask_write(asking, b"<last>", "1")
    assert asking.ask("process/closeStdin", processId="p") == ACCEPTED
    assert write(asking, b"x", "2") == STDIN_CLOSED
    assert read_input(run, b"<last>") == b"<last>"
    assert waiting.get(timeout=20) == ACCEPTED
    assert run.read() == b""


def test_input_that_cannot_end(asking: Client) -> None:
    assert asking.ask("process/closeStdin", processId="p") == UNKNOWN
    started(asking)
    assert asking.ask("process/closeStdin", processId="p") == STDIN_CLOSED


def test_the_end_of_a_terminals_input_is_typed_behind_what_waits(asking: Client) -> None:
    run = started(asking, tty=True)
    write(asking, b"line\n", "1")
    assert asking.ask("process/closeStdin", processId="p") == ACCEPTED
    assert (run.read("pty"), run.read("pty")) == (b"line\n", b"")
    process = asking.call.session.processes.known("p")
    assert process.stdin is not None
    process.stdin._turns.append(gevent.event.Event())  # as a write that waits
    ending = asking.ask_later("process/closeStdin", processId="p")
    assert not ending.ready()
    process.stdin._leave(process.stdin._turns[0])
    assert ending.get(timeout=20) == ACCEPTED
    assert run.read("pty") == b""
