"""Children that a command makes for its own parent, who is the zygote where there is no first process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.e2e.sandbox_places import Place, place_for
from tests.sandbox.attacks.conftest import started
from tests.support.running import outcome
from tests.support.sandboxes import read_only
from tests.support.server_process import OURS
from tests.support.ways import python_for, server_flavour

SIBLINGS = """
import ctypes, os, signal
libc, made = ctypes.CDLL(None), []
for status in range(200):
    pid = libc.syscall(56, 0x8000 | 17, 0, 0, 0, 0)
    if pid == 0:
        os.kill(os.getpid(), 9) if status % 2 else os._exit(status)
    made.append(pid > 0)
print(all(made), flush=True)
os._exit(7)
"""


@pytest.fixture(params=["user", "landlock-user"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A place of a server whose commands are the zygote's own children, or not."""
    with started(server_flavour(OURS, request.param)) as server:
        peer = server.connect()
        peer.open_session()
        with place_for(peer, os.stat(f"/proc/{server.pid}").st_uid) as made:
            made.server = server
            yield made
        peer.close()


def test_the_end_of_a_sibling_is_nobodys_end(place: Place) -> None:
    assert place.server is not None
    user = os.stat(f"/proc/{place.server.pid}").st_uid
    other = place.begin("read line; exit 3", read_only(place.ws), pipeStdin=True)
    done = place.run([python_for(user), "-I", "-S", "-c", SIBLINGS], read_only(place.ws))
    assert (done.exit_code, done.stdout) == (7, b"True\n"), done
    line = {"processId": other, "chunk": "Cg==", "writeId": "w"}
    assert place.peer.call("process/write", line) == {"status": "accepted"}
    assert outcome(place.peer, other).exit_code == 3
    assert place.run("echo on", read_only(place.ws)).stdout == b"on\n"
