"""Signals to running processes, and the list of them."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.support.peer import Json, RemoteError
from tests.support.proc import resident_bytes, state, wait_over
from tests.support.running import Outcome, outcome, output_until, run, start, terminate
from tests.support.waiting import wait_until
from tests.support.ws_peer import WsPeer

CAUGHT = ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "CONT", "WINCH"]
PREFIXED = [f"SIG{name}" for name in CAUGHT]


def send_signal(peer: WsPeer, name: str, process_id: str = "p") -> Json:
    return peer.call("process/signal", {"processId": process_id, "signal": name})


def trapping(peer: WsPeer, name: str, *, tty: bool = False) -> Outcome:
    """Start a process that reports a signal and ends; return once it listens."""
    collected = Outcome()
    start(
        peer,
        "p",
        f"ulimit -c 0; trap 'echo caught; exit 6' {name}; echo ready; while :; do sleep 0.01; done",
        tty=tty,
    )
    output_until(peer, "p", b"ready", collected)
    return collected


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "tty"])
def test_an_interrupt_reaches_the_process(peer: WsPeer, tty: bool) -> None:
    collected = trapping(peer, "INT", tty=tty)
    assert send_signal(peer, "interrupt") == {}
    result = outcome(peer, "p", collected)
    assert b"caught" in result.stdout + result.pty
    assert result.exit_code == 6


def test_an_interrupt_reaches_the_whole_group(peer: WsPeer) -> None:
    """A shell runs its trap only once its foreground child has ended."""
    collected = Outcome()
    start(peer, "p", "trap 'exit 6' INT; sh -c 'echo ready; exec sleep 100'; exit 7")
    output_until(peer, "p", b"ready", collected)
    send_signal(peer, "interrupt")
    assert outcome(peer, "p", collected).exit_code == 6


def test_an_interrupt_nobody_waits_for_is_no_error(peer: WsPeer) -> None:
    assert send_signal(peer, "interrupt", "nobody") == {}
    run(peer, "p", "exit 0")
    assert send_signal(peer, "interrupt") == {}


@pytest.mark.parametrize("name", ["", "Interrupt", "winch2", "9", "SIGFOO", "sigint"])
def test_what_is_no_signal_is_refused(peer: WsPeer, name: str) -> None:
    start(peer, "p", ["sleep", "100"])
    with pytest.raises(RemoteError) as refusal:
        send_signal(peer, name)
    assert refusal.value.code == -32602
    assert terminate(peer, "p")


@pytest.mark.ours_only("an extension")
@pytest.mark.parametrize("name", [*CAUGHT, *PREFIXED, *map(str.lower, CAUGHT)])
def test_each_signal_reaches_the_process(peer: WsPeer, name: str) -> None:
    collected = trapping(peer, name.upper().removeprefix("SIG"))
    assert send_signal(peer, name) == {}
    assert outcome(peer, "p", collected).exit_code == 6


@pytest.mark.ours_only("an extension")
def test_kill_kills(peer: WsPeer) -> None:
    start(peer, "p", "trap '' TERM; while :; do sleep 0.01; done")
    send_signal(peer, "kill")
    assert outcome(peer, "p").exit_code == 128 + signal.SIGKILL


@pytest.mark.ours_only("an extension")
def test_stop_stops_and_cont_continues(peer: WsPeer) -> None:
    start(peer, "p", "echo $$; while :; do :; done")
    pid = int(output_until(peer, "p", b"\n"))
    send_signal(peer, "stop")
    wait_until(lambda: state(pid) == "T")
    assert entry_of(peer, "p")["running"] is True
    send_signal(peer, "cont")
    wait_until(lambda: state(pid) in "RS")
    assert terminate(peer, "p")


@pytest.mark.ours_only("an extension")
def test_a_stopped_process_can_be_terminated(peer: WsPeer) -> None:
    collected = Outcome()
    start(peer, "p", "echo $$; exec sleep 100")
    pid = int(output_until(peer, "p", b"\n", collected))
    send_signal(peer, "stop")
    wait_until(lambda: state(pid) == "T")
    assert terminate(peer, "p")
    assert outcome(peer, "p", collected).exit_code == 137


def entry_of(peer: WsPeer, process_id: str) -> Json:
    """Return what `process/list` says of one process."""
    (entry,) = [one for one in peer.call("process/list")["processes"] if one["processId"] == process_id]
    return entry


@pytest.mark.ours_only("an extension")
def test_the_list_tells_what_runs(peer: WsPeer) -> None:
    assert peer.call("process/list") == {"processes": [], "identity": None}
    before_ms = time.time() * 1000
    start(peer, "p", ["sh", "-c", "echo $$; while :; do :; done"], tty=True)
    pid = int(output_until(peer, "p", b"\n"))
    wait_until(lambda: entry_of(peer, "p")["cpuTimeMs"] >= 50)
    entry = entry_of(peer, "p")
    assert entry["argv"] == ["sh", "-c", "echo $$; while :; do :; done"]
    assert (entry["pid"], entry["tty"], entry["running"], entry["exitCode"]) == (pid, True, True, None)
    assert before_ms - 2000 <= entry["startedAtMs"] <= time.time() * 1000 + 2000
    assert abs(entry["rssBytes"] - resident_bytes(pid)) < 4 * 1024 * 1024
    assert terminate(peer, "p")


@pytest.mark.ours_only("an extension")
def test_the_list_tells_what_has_ended(peer: WsPeer) -> None:
    run(peer, "p", "exit 3")
    start(peer, "q", ["sleep", "100"])
    by_id = {entry["processId"]: entry for entry in peer.call("process/list")["processes"]}
    assert by_id.keys() == {"p", "q"}
    ended = by_id["p"]
    assert (ended["running"], ended["exitCode"], ended["tty"]) == (False, 3, False)
    assert (ended["pid"], ended["cpuTimeMs"], ended["rssBytes"]) == (None, None, None)
    assert by_id["q"]["running"] is True
    os.kill(by_id["q"]["pid"], signal.SIGKILL)
    wait_over(by_id["q"]["pid"])
    wait_until(lambda: entry_of(peer, "q")["exitCode"] == 137)
