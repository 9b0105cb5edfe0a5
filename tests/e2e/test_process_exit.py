"""How processes end: exit codes, late output, and what terminate does."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import Connect, StartServer
from tests.support.peer import RemoteError
from tests.support.proc import wait_over
from tests.support.producer import Producer
from tests.support.running import (
    Outcome,
    event,
    outcome,
    output_until,
    read,
    run,
    start,
    start_params,
    terminate,
    write,
)
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.ws_peer import WsPeer

PIPE_KILLED = (-1, 137)
LATE = ["HUP", "INT", "QUIT", "KILL", "USR1", "PIPE", "TERM", "SEGV"]


def until_exited(peer: WsPeer, process_id: str) -> Outcome:
    """Collect notifications up to the exit."""
    collected = Outcome()
    while collected.exit_code is None:
        collected.take(event(peer, process_id))
    return collected


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "tty"])
@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_an_exit_status_is_reported(peer: WsPeer, tty: bool, code: int) -> None:
    assert run(peer, "p", f"exit {code}", tty=tty).exit_code == code
    assert read(peer, "p")["exitCode"] == code


@pytest.mark.parametrize("name", LATE)
def test_a_death_by_signal_on_pipes_is_128_and_its_number(peer: WsPeer, name: str) -> None:
    number = getattr(signal, f"SIG{name}")
    assert run(peer, "p", f"ulimit -c 0; kill -{name} $$; sleep 100").exit_code == 128 + number


@pytest.mark.parametrize("name", ["INT", "KILL", "TERM", "SEGV"])
def test_a_death_by_signal_on_a_terminal_is_1(peer: WsPeer, name: str) -> None:
    assert run(peer, "p", f"ulimit -c 0; kill -{name} $$; sleep 100", tty=True).exit_code == 1


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "tty"])
def test_all_output_is_sent_however_fast_the_process_ends(peer: WsPeer, tty: bool) -> None:
    for number in range(20):
        result = run(peer, f"p{number}", f"printf '%05d' {number}; head -c 20000 /dev/zero; exit 7", tty=tty)
        assert result.output("pty" if tty else "stdout") == b"%05d" % number + bytes(20_000)
        assert result.exit_code == 7
        assert result.closed_seq == max(result.arrival)


@contextmanager
def holder_of_output(peer: WsPeer, folder: Path) -> Iterator[Path]:
    """A process that has exited while its child prints what is written into a FIFO."""
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    start(peer, "p", f"cat {shlex.quote(str(fifo))} & exit 5")
    yield fifo


def test_output_held_open_by_a_grandchild_delays_only_the_close(peer: WsPeer, tmp_path: Path) -> None:
    with holder_of_output(peer, tmp_path) as fifo:
        collected = until_exited(peer, "p")
        assert collected.exit_code == 5
        state = read(peer, "p")
        assert (state["exited"], state["exitCode"], state["closed"]) == (True, 5, False)
        fifo.write_bytes(b"late")
    outcome(peer, "p", collected)
    assert collected.stdout == b"late"
    assert collected.exited_seq is not None
    assert max(seq for seq, _, _ in collected.chunks) > collected.exited_seq
    assert collected.closed_seq == collected.exited_seq + 2


def test_terminating_what_has_exited_kills_nobody(peer: WsPeer, tmp_path: Path) -> None:
    with holder_of_output(peer, tmp_path) as fifo:
        collected = until_exited(peer, "p")
        assert terminate(peer, "p") is False
        fifo.write_bytes(b"alive")
    outcome(peer, "p", collected)
    assert collected.stdout == b"alive"


def test_who_left_a_terminal_holds_its_close_back(peer: WsPeer, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    start(peer, "p", f"trap '' HUP; cat {shlex.quote(str(fifo))} & exit 5", tty=True)
    collected = until_exited(peer, "p")
    assert collected.exit_code == 5
    assert read(peer, "p")["closed"] is False
    fifo.write_bytes(b"late")
    outcome(peer, "p", collected)
    assert collected.pty == b"late"


def test_the_jobs_of_a_terminal_are_hung_up_with_its_leader(peer: WsPeer) -> None:
    start(peer, "p", "sleep 100 & echo $!; exit 0", tty=True)
    job = int(output_until(peer, "p", b"\n"))
    wait_over(job)


def test_terminate_kills_the_group_at_once(peer: WsPeer) -> None:
    start(peer, "p", "trap '' TERM INT HUP; (trap '' TERM; sleep 100) & echo $!; wait")
    collected = Outcome()
    grandchild = int(output_until(peer, "p", b"\n", collected))
    assert terminate(peer, "p") is True
    assert outcome(peer, "p", collected).exit_code in PIPE_KILLED
    wait_over(grandchild)
    assert terminate(peer, "p") is False
    result = read(peer, "p")
    assert (result["exited"], result["closed"]) == (True, True)
    assert result["exitCode"] in PIPE_KILLED


def test_terminate_on_a_terminal_gives_exit_code_1(peer: WsPeer) -> None:
    collected = Outcome()
    start(peer, "p", "echo ready; exec sleep 100", tty=True)
    output_until(peer, "p", b"ready", collected)
    assert terminate(peer, "p") is True
    assert outcome(peer, "p", collected).exit_code == 1


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "tty"])
def test_a_process_can_be_terminated_right_behind_its_start(peer: WsPeer, tty: bool) -> None:
    for number in range(30):
        params = start_params(f"p{number}", "exec sleep 100", tty=tty)
        peer.send({"id": 1000 + number, "method": "process/start", "params": params})
        kill = {"processId": f"p{number}"}
        peer.send({"id": 2000 + number, "method": "process/terminate", "params": kill})
    for number in range(30):
        assert peer.take({"id": 1000 + number})["result"]["processId"] == f"p{number}"
        assert peer.take({"id": 2000 + number})["result"] == {"running": True}
        assert outcome(peer, f"p{number}").exit_code in ((1, -1) if tty else PIPE_KILLED)


@pytest.mark.parametrize("process_id", ["", 'ü\n"', "x" * 10_000], ids=["empty", "odd", "long"])
def test_a_process_may_be_called_anything(peer: WsPeer, process_id: str) -> None:
    assert run(peer, process_id, "exit 3").exit_code == 3
    assert read(peer, process_id)["closed"]


def test_terminate_of_nobody_is_no_error(peer: WsPeer) -> None:
    assert terminate(peer, "nobody") is False


@pytest.mark.ours_only("there what was not read yet is lost")
def test_terminate_loses_nothing_that_was_written(peer: WsPeer, tmp_path: Path) -> None:
    for number in range(10):
        written = tmp_path / f"written{number}"
        script = f"head -c 60000 /dev/zero; touch {shlex.quote(str(written))}; exec sleep 100"
        start(peer, f"p{number}", script)
        peer.send({"id": 1000 + number, "method": "environment/info"})
        wait_until(written.exists)
        assert terminate(peer, f"p{number}")
        assert outcome(peer, f"p{number}").stdout == bytes(60_000)


@pytest.mark.ours_only("there what was not read yet is lost")
def test_terminate_loses_nothing_although_the_client_slept(
    start_server: StartServer, connect: Connect
) -> None:
    peer = connect(start_server())
    peer.open_session()
    producer = Producer(peer, 100 * 1024 * 1024)
    written = producer.wait_until_blocked()
    peer.send({"id": 9, "method": "process/terminate", "params": {"processId": "p"}})
    wait_over(producer.pid)
    assert len(outcome(peer, "p", producer.collected).stdout) >= written


def test_a_write_after_terminate_fails_unless_it_is_a_repeat(peer: WsPeer) -> None:
    start(peer, "p", ["cat"], pipeStdin=True)
    assert write(peer, "p", b"x", "w1") == "accepted"
    output_until(peer, "p", b"x")
    terminate(peer, "p")
    with pytest.raises(RemoteError, match=r"^-32603: failed to write to process stdin$"):
        write(peer, "p", b"y", "w2")
    assert write(peer, "p", b"x", "w1") == "accepted"


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "tty"])
def test_a_start_that_fails_leaves_the_id_free_and_nothing_open(
    peer: WsPeer, server: ServerProcess, tty: bool
) -> None:
    for _ in range(3):
        with pytest.raises(RemoteError):
            start(peer, "p", ["/nowhere"], tty=tty)
    assert run(peer, "p", "echo x", tty=tty).exit_code == 0
