"""The blocking box with a real server: commands and streams from any thread, and what interrupts them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from execserver.client.errors import NotFoundError, WaitTimeout
from execserver.client.rules.event_log import Closed, Exited, Output
from execserver_client.sync._loop_thread import ClientClosed
from execserver_client.sync._portal import Portal
from execserver_client.sync.box import Box
from tests.sdk.boxes import box_of
from tests.support.waiting import wait_until


@pytest.fixture
def box(url: str) -> Iterator[Box]:
    portal = Portal()
    with Box(portal, portal.call(box_of(url).open)) as box:
        yield box
    assert [each.name for each in threading.enumerate() if each.name == "execserver-client"] == []


def test_a_command_is_run_to_its_end(box: Box) -> None:
    result = box.run(["sh", "-c", "cat; echo err >&2; exit 3"], input=b"in")
    assert (result.exit_code, result.stdout, result.stderr, result.ok) == (3, b"in", b"err\n", False)


def test_events_are_iterated(box: Box, tmp_path: Path) -> None:
    with box.start(["sh", "-c", "pwd"], cwd=str(tmp_path)) as process:
        events = [*process]
    assert [type(event) for event in events if not isinstance(event, Output)] == [Exited, Closed]
    written = b"".join(event.data for event in events if isinstance(event, Output))
    assert written == os.fsencode(tmp_path) + b"\n"
    assert process.exit_code == 0


def test_a_terminal_is_written_to_and_read(box: Box) -> None:
    with box.start(["cat"], pipe_stdin=True) as process:
        process.write(b"one\n")
        assert next(process.stdout) == b"one\n"
        process.close_stdin()
        assert process.wait(timeout=30) == 0


def test_threads_run_commands_side_by_side(box: Box, tmp_path: Path) -> None:
    """Each of them waits for the file of the next one."""
    count = 8

    def run(number: int) -> int | None:
        mine, other = tmp_path / str(number), tmp_path / str((number + 1) % count)
        script = f"touch {mine}; until [ -e {other} ]; do sleep 0.01; done; exit {number}"
        return box.run(["sh", "-c", script], timeout=30).exit_code

    with ThreadPoolExecutor(count) as threads:
        assert [*threads.map(run, range(count))] == [*range(count)]


def running(box: Box, process_id: str) -> bool:
    return [each.running for each in box.processes() if each.process_id == process_id] == [True]


def test_ctrl_c_kills_the_command_that_is_waited_for(box: Box) -> None:
    main = threading.get_ident()
    interrupter = threading.Thread(target=_when(lambda: bool(box.processes()), main))
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        box.run(["sleep", "1000"])
    interrupter.join()
    wait_until(lambda: not any(each.running for each in box.processes()))


def _when(begun: Callable[[], bool], thread: int) -> Callable[[], None]:
    def interrupting() -> None:
        wait_until(begun)
        signal.pthread_kill(thread, signal.SIGINT)

    return interrupting


def test_leaving_a_process_kills_it(box: Box) -> None:
    with box.start(["sleep", "1000"]) as process, pytest.raises(WaitTimeout):
        process.wait(timeout=0.01)
    wait_until(lambda: not running(box, process.process_id))


def test_a_closed_box_says_so_and_may_be_closed_again(url: str) -> None:
    portal = Portal()
    box = Box(portal, portal.call(box_of(url).open))
    process = box.start(["true"])
    box.close()
    box.close()
    with pytest.raises(ClientClosed, match="connect again"):
        process.wait()


def test_errors_are_those_of_asyncio(box: Box) -> None:
    with pytest.raises(NotFoundError):
        box.call("fs/readFile", {"path": "file:///no/such/file"})
