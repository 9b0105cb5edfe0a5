"""Signs of life of a real server: their pace, and that an event loop that stands still gives none.

The service manager is a stand-in: the socket that systemd listens on, and what systemd does when nothing was
heard for WatchdogSec, which is SIGABRT to the main process, and another start.  That systemd itself does so
is played in tests/machines/test_watchdog.py, where there is an emulator.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from execserver.service_manager import ALIVE, READY
from tests.support import proc
from tests.support.crashes import server_of, surviving
from tests.support.notify_socket import notify_socket
from tests.support.peer import Peer
from tests.support.server_process import Flavour, ServerProcess, base_environment
from tests.support.waiting import wait_until

WATCHDOG_S = 2.0  # half of it is the pace
SIGNS, SIGNS_WATCHDOG_S = 3, 5.0  # where the time between them counts: a busy machine may be late by half
# Our program, whose event loop SIGUSR2 has run in a circle until a file is there, as a mistake in it would.
HANGING = """
import os, signal, sys
folder = {folder!r}
def hang(*_):
    open(folder + "/hangs", "w").close()
    while not os.path.exists(folder + "/go"):
        pass
signal.signal(signal.SIGUSR2, hang)
from execserver.dispatch import main
sys.exit(main())
"""


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with notify_socket(tmp_path) as sock:
        yield sock


@pytest.fixture
def env(manager: socket.socket) -> dict[str, str]:
    told = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
    return {**base_environment(), **told}


@contextmanager
def a_server_that_can_hang(
    folder: Path, env: dict[str, str], listen: str = "ws://127.0.0.1:0"
) -> Iterator[ServerProcess]:
    """Start one; whatever happens it goes on at the end, so that it can be ended in order."""
    script = HANGING.format(folder=str(folder))
    with ServerProcess(Flavour("ours", (sys.executable, "-c", script), 0), env=env, listen=listen) as server:
        try:
            yield server
        finally:
            (folder / "go").touch()


def heard(manager: socket.socket) -> str:
    return manager.recv(1000).decode()


def next_signs(manager: socket.socket, count: int) -> list[float]:
    """Return when so many signs of life came, nothing else between them."""
    times = []
    for _ in range(count):
        assert heard(manager) == ALIVE
        times.append(time.monotonic())
    return times


def is_silent(manager: socket.socket) -> bool:
    """Tell whether nothing comes for the whole of WatchdogSec, behind what has come."""
    manager.setblocking(False)
    try:
        while True:
            assert heard(manager) == ALIVE
    except BlockingIOError:
        pass
    manager.settimeout(WATCHDOG_S)
    try:
        heard(manager)
    except TimeoutError:
        return True
    finally:
        manager.settimeout(20)
    return False


def hang(server: ServerProcess, folder: Path) -> None:
    """Have the event loop run in a circle; it does when this returns."""
    os.kill(server.pid, signal.SIGUSR2)
    wait_until((folder / "hangs").exists, 20)


def test_signs_of_life_come_twice_in_the_time_that_the_manager_waits(
    manager: socket.socket, env: dict[str, str]
) -> None:
    with ServerProcess(env=env | {"WATCHDOG_USEC": str(int(SIGNS_WATCHDOG_S * 1e6))}):
        assert heard(manager) == READY
        ready = time.monotonic()
        times = next_signs(manager, SIGNS)
    gaps = [after - before for before, after in zip([ready, *times], times, strict=False)]
    assert max(gaps) < SIGNS_WATCHDOG_S  # else systemd would have ended it
    # No storm of them either; the first may be late, and the second is in time again.
    assert times[-1] - ready > (SIGNS - 0.5) * SIGNS_WATCHDOG_S / 2


def test_a_stopped_server_gives_no_sign_and_goes_on_with_them_when_it_is_continued(
    manager: socket.socket, env: dict[str, str]
) -> None:
    with ServerProcess(env=env) as server:
        assert heard(manager) == READY
        next_signs(manager, 1)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: proc.state(server.pid) == "T", 20)
            assert is_silent(manager)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        next_signs(manager, 2)


def test_a_loop_that_runs_in_a_circle_gives_no_sign_though_its_process_runs(
    manager: socket.socket, env: dict[str, str], tmp_path: Path
) -> None:
    with a_server_that_can_hang(tmp_path, env) as server:
        assert heard(manager) == READY
        next_signs(manager, 1)
        hang(server, tmp_path)
        used = proc_ticks(server.pid)
        assert is_silent(manager)
        assert proc.state(server.pid) != "T"
        assert proc_ticks(server.pid) > used  # it is no stopped process, and no waiting one
        (tmp_path / "go").touch()
        next_signs(manager, 2)


def proc_ticks(pid: int) -> int:
    """Return the processor time of a process, in the kernel's ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_server_that_hangs_is_ended_by_the_manager_s_signal_with_all_it_has_and_another_takes_its_place(
    manager: socket.socket, env: dict[str, str], tmp_path: Path
) -> None:
    """By SIGABRT alone: what hangs runs no handler, and nothing of it may need one."""
    with a_server_that_can_hang(tmp_path, env) as server:
        assert heard(manager) == READY
        url = server.url
        with server.connect() as peer:
            start_sleep(peer)
        below = proc.descendants_of(server.pid)
        assert below
        hang(server, tmp_path)
        assert is_silent(manager)
        server.signal(signal.SIGABRT)
        assert server.wait() == -signal.SIGABRT
        wait_until(lambda: all(map(proc.is_over, below)), 20)
        with ServerProcess(env=env, listen=url) as next_one:
            assert heard(manager) == READY
            next_signs(manager, 1)
            with next_one.connect() as peer:
                start_sleep(peer)


def start_sleep(peer: Peer) -> None:
    peer.open_session()
    env = {"PATH": "/usr/bin:/bin"}
    params = {"processId": "p", "argv": ["sleep", "1000"], "cwd": "/", "env": env, "tty": False}
    peer.call("process/start", params)


def test_a_keeper_gives_no_sign_for_a_server_that_hangs(manager: socket.socket, env: dict[str, str]) -> None:
    with surviving(env=env) as keeper:
        assert heard(manager) == READY
        next_signs(manager, 1)
        server = server_of(keeper.pid)
        os.kill(server, signal.SIGSTOP)
        try:
            wait_until(lambda: proc.state(server) == "T", 20)
            assert is_silent(manager)
            below = proc.descendants_of(keeper.pid)
            keeper.signal(signal.SIGABRT)
            assert keeper.wait() == -signal.SIGABRT
        finally:
            if not proc.is_over(server):
                os.kill(server, signal.SIGCONT)
        wait_until(lambda: all(map(proc.is_over, below)), 20)
