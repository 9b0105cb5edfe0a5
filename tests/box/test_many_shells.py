"""Three hundred shells at once on one server: each answers, all end, and what they cost is given back."""

from __future__ import annotations

import os
from pathlib import Path

import gevent
import pytest
from gevent.pool import Pool

from execserver.box.commands.watching import leave
from execserver.client.client import ExecServerClient
from execserver.client.options import ExecServerClientConnectOptions
from execserver.client.process import RemoteProcess
from execserver.client.rules.event_log import Output
from execserver.client.rules.starting import INHERIT_ENVIRONMENT
from tests.box.boxes import Person
from tests.box.test_shell import wait_for_prompt
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

COUNT = 300
_MOST_KIB_EACH = 400


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def open_shell(url: str) -> tuple[ExecServerClient, RemoteProcess]:
    client = ExecServerClient.connect(
        url, ExecServerClientConnectOptions(keep_ms=60_000, connect_timeout=60, initialize_timeout=60)
    )
    return client, client.start(["/bin/sh", "-i"], tty=True, env_policy=INHERIT_ENVIRONMENT, cwd="/")


def asked(number: int, process: RemoteProcess) -> bytes:
    """Return what a shell says up to its answer."""
    process.write(b"echo n'u'mber $((%d + 1))\r" % number)
    said = b""
    while b"number %d\r\n" % (number + 1) not in said:
        event = process.next_event(60)
        assert isinstance(event, Output), event
        said += event.data
    return said


@pytest.mark.long
@pytest.mark.timeout(240)
def test_three_hundred_shells_answer_and_leave_nothing(person: Person) -> None:
    with ServerProcess() as server:
        leave(open_shell(server.url)[0])  # loads what every further one uses
        before, memory_before = descriptors(server.pid), memory_kib(server.pid)
        pool = Pool(32)
        shells = pool.map(lambda _: open_shell(server.url), range(COUNT))
        try:
            pool.map(lambda each: asked(each[0], each[1][1]), enumerate(shells))
            # A connection and a terminal.
            assert descriptors(server.pid) - before <= 3 * COUNT
            assert memory_kib(server.pid) - memory_before <= _MOST_KIB_EACH * COUNT
            with person.at_terminal("shell", server.url) as screen:  # and one more person
                wait_for_prompt(screen)
                screen.type(b"exit 5\r")
                assert screen.ended() == 5
            for _, process in shells:
                process.write(b"exit 3\r")
            assert [process.wait(60) for _, process in shells] == [3] * COUNT
        finally:
            pool.map(lambda each: leave(each[0]), shells)
        wait_until(lambda: descriptors(server.pid) <= before + 2, 30, pause=gevent.sleep)
