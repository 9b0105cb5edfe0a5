"""What a command can hold decides for nobody else: locks on what stands in for a missing path."""

from __future__ import annotations

import base64
import os
import time

from tests.e2e.sandbox_places import Place
from tests.sandbox.attacks.conftest import GONE_S
from tests.support.running import outcome
from tests.support.sandboxes import read_only, workspace_write
from tests.support.waiting import wait_until
from tests.support.ways import python_for

HOLDS = """
import fcntl, os, sys, time
held = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
for operation in (fcntl.LOCK_SH, fcntl.LOCK_EX):
    for descriptor in held:
        fcntl.flock(descriptor, operation)
    print(operation, flush=True)
time.sleep(600)
"""


def said(place: Place, name: str) -> int:
    """Return how many lines a process has said."""
    chunks = place.peer.call("process/read", {"processId": name})["chunks"]
    return sum(base64.b64decode(chunk["chunk"]).count(b"\n") for chunk in chunks)


def test_a_lock_on_a_stand_in_neither_refuses_a_start_nor_keeps_it(place: Place) -> None:
    assert place.server is not None
    stand_ins = [str(place.ws / name) for name in (".git", ".agents", ".codex")]
    running = place.begin("echo; exec sleep 600", workspace_write(place.ws))
    wait_until(lambda: said(place, running) == 1)
    user = os.stat(f"/proc/{place.server.pid}").st_uid
    words = [python_for(user), "-I", "-S", "-c", HOLDS, *stand_ins]
    # It may read everything and write nothing, and knows of no other command.
    stranger = place.begin(words, read_only(place.other), cwd=f"file://{place.other}")
    wait_until(lambda: said(place, stranger) >= 1)

    place.peer.call("process/terminate", {"processId": running})
    assert outcome(place.peer, running).exit_code is not None
    wait_until(lambda: sorted(os.listdir(place.ws)) == ["f"], GONE_S)
    wait_until(lambda: said(place, stranger) == 2)  # it has all locks for itself now

    began = time.monotonic()
    done = place.run("mkdir .git", workspace_write(place.ws))
    assert (done.exit_code, done.stderr[:6]) == (1, b"mkdir:")
    assert time.monotonic() - began < GONE_S
    wait_until(lambda: sorted(os.listdir(place.ws)) == ["f"], GONE_S)
    place.peer.call("process/terminate", {"processId": stranger})
    outcome(place.peer, stranger)
