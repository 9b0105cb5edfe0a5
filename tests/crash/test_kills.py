"""A server is killed again and again, and its clients lose nothing: ten times, a thousand in the long run.

From outside at any time, and by itself at the steps in which it writes something down.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
from pathlib import Path

import pytest

from tests.support import proc
from tests.support.crashes import Follower, crash, server_of, surviving
from tests.support.sandboxes import read_only
from tests.support.server_process import Flavour, ServerProcess, base_environment
from tests.support.waiting import wait_until

LONG = os.environ.get("EXECSERVER_LONG") == "1"
KILLS = 1000 if LONG else 10
LIVES_S = 0.25  # of a server at most: kills come while it starts, goes on, and serves
STEADY = ("pipe", "pty", "sandboxed")
# A machine that stands still for a while must not end a session: that its time goes on is tested elsewhere.
SETTINGS: dict[str, object] = {"crash_restarts": 100_000, "detached_session_ttl_s": 1200.0}
DYING = Path(__file__).resolve().parents[1] / "support" / "dying_server.py"

pytestmark = pytest.mark.timeout(7200 if LONG else 300)


def counting(stop: Path) -> str:
    """Return a script that counts, in bursts, until a file is there, and then says how far it has come."""
    burst = "n=0; while [ $n -lt 40 ]; do echo $i; i=$((i+1)); n=$((n+1)); done"
    return f"i=0; while [ ! -e {stop} ]; do {burst}; sleep 0.01; done; echo end $i; exit 7"


def counted(output: bytes) -> bytes:
    """Return what such a script must have written, by its last line."""
    last = int(output.rpartition(b"end ")[2])
    return b"".join(b"%d\n" % number for number in range(last)) + b"end %d\n" % last


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Load:
    """Processes that write, read and end all the time, and what must come of them."""

    def __init__(self, client: Follower, folder: Path) -> None:
        self._client, self._stop = client, folder / "stop"
        self._chance = random.Random(KILLS)
        self._sent = b""
        self._round = 0
        client.start("pipe", counting(self._stop))
        client.start("pty", f"stty -onlcr; {counting(self._stop)}", tty=True)
        client.start("sandboxed", counting(self._stop), sandbox=read_only(folder))
        client.start("cat", "cat", pipeStdin=True)

    def begin_round(self) -> None:
        """Start a process that is to end soon, and read for a while."""
        self._round += 1
        self._line = b"%d %s\n" % (self._round, b"x" * self._chance.choice((1, 50, 3000, 30_000)))
        self._sent += self._line
        # It ends while no server is there, or just before or after.
        script = f"sleep 0.{self._chance.randrange(3)}; echo {self._round}; exit {self._round % 100}"
        self._client.start(f"short {self._round}", script)
        until = time.monotonic() + self._chance.random() * LIVES_S
        if self._round % 2:
            self._write()
        while time.monotonic() < until:
            for each in (*STEADY, "cat"):
                self._client.read(each, 5)

    def end_round(self) -> None:
        """Look at how it has ended."""
        short = f"short {self._round}"
        if not self._round % 2:
            self._write()
        self._write()  # the same write
        self._client.read_all(short)
        told = self._client.output(short), self._client.ends[short]["exitCode"]
        assert told == (b"%d\n" % self._round, self._round % 100)

    def end(self) -> None:
        """End everything, and compare what came of it."""
        self._stop.touch()
        client = self._client
        client.call("process/closeStdin", {"processId": "cat"})
        client.read_all(*STEADY, "cat")
        for each in STEADY:
            output = client.output(each, "pty" if each == "pty" else "stdout")
            assert sha(output) == sha(counted(output)), each
            assert client.ends[each]["exitCode"] == 7
        assert sha(client.output("cat")) == sha(self._sent)
        for each in (*STEADY, "cat"):  # each number once, and none left out
            numbers = client.numbers(each)
            assert numbers == list(range(1, len(numbers) + 1))

    def _write(self) -> None:
        assert self._client.write("cat", self._line, f"w{self._round}") == "accepted"


def test_streams_input_and_ends_survive_kills(tmp_path: Path) -> None:
    with surviving(settings=SETTINGS) as server, Follower(server) as client:
        load = Load(client, tmp_path)
        for kill in range(KILLS):
            load.begin_round()
            before = crash(server)
            if kill % 7 == 0:  # the next one is killed as soon as it is there
                server_of(server.pid, before)
                crash(server)
            load.end_round()
        load.end()
        assert client.resumed >= KILLS // 2
        all_zygotes_end(server)


def test_nothing_is_lost_at_whatever_step_a_server_dies(tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    deaths.touch()
    dying = Flavour("ours", (sys.executable, str(DYING)), 0)
    env = {**base_environment(), "TEST_DEATHS": str(deaths)}
    with surviving(settings=SETTINGS, flavour=dying, env=env) as server, Follower(server) as client:
        load = Load(client, tmp_path)
        number = 0
        while number < KILLS:
            before, number = number, deaths.read_bytes().count(b"\n")
            if before == number:  # its step does not come
                crash(server)
            load.begin_round()
            load.end_round()
        load.end()
        all_zygotes_end(server)


def all_zygotes_end(server: ServerProcess) -> None:
    """Wait until the zygotes of all servers but the last are gone with their last children."""
    wait_until(lambda: len(proc.children_of(server.pid)) == 1, 60)
