"""In the middle of an upgrade: ^C at the server's terminal, or at that of whoever asks; another one."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.server_process import (
    OURS,
    Flavour,
    ServerProcess,
    base_environment,
    interrupts_not_ignored,
)
from tests.support.upgrades import VERB, WAIT_S, planted_program, program, refused
from tests.support.waiting import wait_until

LEADER = Flavour("ours", ("setsid", *OURS.argv), 0)  # of a group, as a shell makes one for each command


def started(flavour: Flavour = OURS) -> ServerProcess:
    """Return a server that can be upgraded by now."""
    server = ServerProcess(flavour, options=("--log-level", "info"))
    with server.connect() as peer:
        peer.open_session()
    return server


class Asked:
    """An upgrade that waits for the new program's answer."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        """Ask for it; return once the program is asked."""
        self._folder = folder
        waits = f"touch {folder}/asked; while ! [ -e {folder}/go ]; do sleep 0.02; done; touch {folder}/done"
        file = program(folder / "new", waits)
        with interrupts_not_ignored():
            self.verb = subprocess.Popen(
                [*VERB, "--pid", str(server.pid), str(file)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=base_environment(),
            )
        wait_until((folder / "asked").exists, WAIT_S)

    def answer(self) -> None:
        """Let the program answer."""
        (self._folder / "go").touch()
        wait_until((self._folder / "done").exists, WAIT_S)

    def end(self) -> tuple[int, str, str]:
        """Return how the verb has ended, and what it has said."""
        out, err = self.verb.communicate(timeout=WAIT_S)
        return self.verb.returncode, out, err


def test_an_interrupt_at_the_servers_terminal_ends_the_server_and_blames_no_program(tmp_path: Path) -> None:
    with started(LEADER) as server:
        asked = Asked(server, tmp_path)
        os.killpg(server.pid, signal.SIGINT)
        assert server.wait() == 0
        asked.answer()  # it was not interrupted
        status, _, err = asked.end()
        assert (status, err.splitlines()[0]) == (1, "Error: the process ended during the upgrade")
        assert "ending all processes" in server.errors()
        assert "cannot take over" not in server.errors()


def test_who_asks_may_leave_and_the_upgrade_goes_on(tmp_path: Path) -> None:
    with started() as server:
        asked = Asked(server, tmp_path)
        asked.verb.send_signal(signal.SIGINT)
        told = "execserver: not waited for; the upgrade goes on, and the server's log says how it ends\n"
        assert asked.end() == (130, "", told)
        asked.answer()
        wait_until(lambda: "upgraded from" in server.errors(), WAIT_S)


def test_who_asks_in_the_middle_of_an_upgrade_is_refused_and_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with started() as server:
        asked = Asked(server, tmp_path)
        assert "Error: an upgrade is under way" in refused(
            server, str(planted_program(tmp_path / "other/new"))
        )
        asked.answer()
        status, out, _ = asked.end()
        assert (status, out[:13]) == (0, "upgraded from")
        assert not (tmp_path / "other/ran").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_behind_the_exec_ends_the_next_server_in_order(
    tmp_path: Path, number: signal.Signals
) -> None:
    file = program(tmp_path / "new")
    # What runs behind the exec signals itself before there is an interpreter.
    file.write_text(file.read_text().replace("exec ", f"kill -{number.name[3:]} $$; exec ", 1))
    with started() as server:
        subprocess.run(
            [*VERB, "--pid", str(server.pid), str(file)], timeout=WAIT_S, check=False, env=base_environment()
        )
        assert server.wait() == 0
        assert "ending all processes" in server.errors()
        assert "Traceback" not in server.errors()
