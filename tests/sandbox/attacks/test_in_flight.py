"""Descriptors in messages that nobody receives: the kernel counts them for each user, over all sandboxes."""

from __future__ import annotations

import base64
import dataclasses
import os
import resource
from collections.abc import Iterator

import pytest

from tests.e2e.sandbox_places import Place, place_for
from tests.e2e.sandboxed_calls import Files
from tests.sandbox.attacks.conftest import started
from tests.support.running import outcome
from tests.support.sandboxes import read_only
from tests.support.server_process import OURS
from tests.support.waiting import wait_until
from tests.support.ways import python_for, server_flavour

# That the server may have open, so that they are used up soon; no more than others of this user may have at
# least, since what a command keeps in flight meanwhile counts against them, too.
FILES = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
FILLS = """
import array, errno, os, resource, socket, sys, time
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
null = os.open("/dev/null", os.O_RDONLY)
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 253))]
kept, sent = [], 0
try:
    while sent < 30000:
        kept.append(socket.socketpair())
        for _ in range(30):
            kept[-1][0].sendmsg([b"x"], rights, socket.MSG_DONTWAIT)
            sent += 253
except OSError as error:
    print(hard, sent, errno.errorcode[error.errno], flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["user", "root-without-userns", "bubblewrap-user", "landlock-user"])
def crowded(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A place whose server may have few files open."""
    flavour = server_flavour(OURS, request.param)
    limited = ("/bin/sh", "-c", f'ulimit -Sn {FILES // 4}; ulimit -Hn {FILES}; exec "$@"', "sh")
    with started(dataclasses.replace(flavour, argv=(*limited, *flavour.argv))) as server:
        peer = server.connect()
        peer.open_session()
        with place_for(peer, os.stat(f"/proc/{server.pid}").st_uid) as place:
            place.server = server
            yield place
        peer.close()


def test_descriptors_in_unread_messages_stop_nobody_else(crowded: Place) -> None:
    place = crowded
    assert place.server is not None
    user = os.stat(f"/proc/{place.server.pid}").st_uid
    words = [python_for(user), "-I", "-S", "-c", FILLS]
    names = [place.begin(words, read_only(place.other), cwd=f"file://{place.other}") for _ in range(2)]

    def said() -> list[list[bytes]]:
        chunks = [place.peer.call("process/read", {"processId": name})["chunks"] for name in names]
        return [base64.b64decode(one[0]["chunk"]).split() for one in chunks if one]

    wait_until(lambda: len(said()) == 2)
    assert all(int(hard) < FILES and how == b"ETOOMANYREFS" for hard, _, how in said())

    assert place.run("echo on", read_only(place.ws)).stdout == b"on\n"
    files = Files(place, read_only(place.ws))
    assert files.read(place.ws / "f") == b"in"
    for name in names:
        place.peer.call("process/terminate", {"processId": name})
        outcome(place.peer, name)
