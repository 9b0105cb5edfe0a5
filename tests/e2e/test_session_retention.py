"""How long a session outlives its client, and what ends with it."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Connect, StartServer
from tests.support.peer import RemoteError
from tests.support.proc import descriptor_count, marked, wait_over
from tests.support.running import PATH, output_until, read, run, start
from tests.support.server_process import Flavour, ServerProcess
from tests.support.waiting import wait_until
from tests.support.ws_peer import WsPeer

TTL = 0.6
SETTINGS = {"detached_session_ttl_s": TTL}
LONG = 5.0  # where a client must be back in time, on a busy machine as well
pytestmark = pytest.mark.ours_only("half a minute there")


def start_marked(peer: WsPeer, script: str, count: int = 1) -> str:
    """Start a process and wait until as many processes as it is to make carry its mark."""
    mark = str(uuid.uuid4())
    start(peer, f"p-{mark}", script, env=PATH | {"MARK": mark})
    wait_until(lambda: len(marked(mark)) == count)
    return mark


def wait_unmarked(mark: str) -> None:
    wait_until(lambda: not marked(mark), LONG + 20)


@pytest.mark.parametrize(
    ("script", "count"),
    [("exec sleep 100", 1), ("trap '' HUP TERM INT; sleep 100 & wait", 2), ("sleep 100 & exec sleep 100", 2)],
    ids=["one", "stubborn", "group"],
)
def test_processes_are_killed_when_the_time_is_over(connect: Connect, script: str, count: int) -> None:
    peer = connect()
    session = peer.open_session()
    mark = start_marked(peer, script, count)
    left_at = time.monotonic()
    peer.close()
    wait_unmarked(mark)
    assert time.monotonic() - left_at >= TTL * 0.9
    with pytest.raises(RemoteError, match=f"^-32600: unknown session id {session}$"):
        connect().open_session(session)


def test_a_grandchild_in_a_session_of_its_own_outlives_the_session_but_not_the_server(
    start_server: StartServer, connect: Connect
) -> None:
    """The contract kills process groups (section 6.5); whoever left the group is ended with the server."""
    server = start_server(settings=SETTINGS)
    peer = connect(server)
    peer.open_session()
    stays, goes = str(uuid.uuid4()), str(uuid.uuid4())
    start(peer, "p", f"MARK={stays} setsid sleep 100 & MARK={goes} exec sleep 100")
    wait_until(lambda: marked(stays) and marked(goes))
    peer.close()
    wait_unmarked(goes)
    assert len(marked(stays)) == 1
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert marked(stays) == []


@pytest.fixture(scope="module")
def patient(flavour: Flavour) -> Iterator[ServerProcess]:
    """A server whose sessions stay long enough to be resumed."""
    with ServerProcess(flavour, settings={"detached_session_ttl_s": LONG}) as server:
        yield server


def test_a_resumed_session_is_not_ended(patient: ServerProcess, connect: Connect) -> None:
    kept, lost = connect(patient), connect(patient)
    session = kept.open_session()
    lost.open_session()
    kept_mark, lost_mark = start_marked(kept, "exec sleep 100"), start_marked(lost, "exec sleep 100")
    kept.close()
    lost.close()
    back = connect(patient)
    back.open_session(session)
    wait_unmarked(lost_mark)
    assert marked(kept_mark)
    back.close()
    again = connect(patient)
    assert again.open_session(session) == session
    assert marked(kept_mark)


def test_each_leave_starts_the_time_anew(patient: ServerProcess, connect: Connect) -> None:
    """Away three times for 0.4 of the time, together more than it; the rest is for a busy machine."""
    clock, peer = connect(patient), connect(patient)
    clock.open_session()
    session = peer.open_session()
    mark = start_marked(peer, "exec sleep 100")
    for number in range(3):
        peer.close()
        run(clock, f"clock{number}", ["sleep", str(LONG * 0.4)])
        peer = connect(patient)
        peer.open_session(session)
    assert marked(mark)
    left_at = time.monotonic()
    peer.close()
    wait_unmarked(mark)
    assert time.monotonic() - left_at >= LONG * 0.9


def test_at_the_bound_the_session_left_longest_ends(start_server: StartServer, connect: Connect) -> None:
    server = start_server(settings={"max_detached_sessions": 2})
    sessions = []
    marks = []
    for _ in range(3):
        peer = connect(server)
        sessions.append(peer.open_session())
        marks.append(start_marked(peer, "exec sleep 100"))
        peer.close()
    wait_unmarked(marks[0])
    assert all(map(marked, marks[1:]))
    with pytest.raises(RemoteError, match="unknown session id"):
        connect(server).open_session(sessions[0])
    for session in sessions[1:]:
        assert connect(server).open_session(session) == session


def test_a_closed_process_is_kept_for_its_time_and_then_its_id_is_free(
    start_server: StartServer, connect: Connect
) -> None:
    peer = connect(start_server(settings={"closed_process_retention_s": 4.0}))
    peer.open_session()
    run(peer, "p", "echo x")
    with pytest.raises(RemoteError, match=r"^-32600: process p already exists$"):
        start(peer, "p", "echo y")
    assert read(peer, "p")["closed"]
    assert peer.call("process/terminate", {"processId": "p"}) == {"running": False}

    def forgotten() -> bool:
        try:
            read(peer, "p")
        except RemoteError as error:
            return error.message == "unknown process id p"
        return False

    wait_until(forgotten, 20)
    assert run(peer, "p", "echo y").stdout == b"y\n"


def test_a_process_that_is_exited_but_not_closed_is_not_forgotten(
    start_server: StartServer, connect: Connect
) -> None:
    peer = connect(start_server(settings={"closed_process_retention_s": 0.2}))
    peer.open_session()
    start(peer, "p", "sleep 100 & echo $!")
    holder = int(output_until(peer, "p", b"\n"))
    run(peer, "clock", ["sleep", "0.5"])
    result = read(peer, "p")
    assert (result["exited"], result["closed"]) == (True, False)
    assert not peer.call("process/terminate", {"processId": "p"})["running"]
    start(peer, "q", ["kill", str(holder)])
    wait_over(holder)


def test_coming_and_going_leaves_nothing_open(start_server: StartServer, connect: Connect) -> None:
    server = start_server()
    session = None
    counts = []
    for number in range(150):
        peer = server.connect()
        session = peer.open_session(session)
        if number == 0:
            start(peer, "p", "exec sleep 100")
        counts.append(descriptor_count(server.pid))
        peer.abort() if number % 2 else peer.close()
    assert max(counts) <= counts[0] + 2
