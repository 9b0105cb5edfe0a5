from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterator

import gevent
import pytest
from gevent.hub import get_hub

from execserver.protocol.errors import InvalidRequest, SessionAlreadyAttached
from execserver.protocol.templates import ProcessTemplates
from execserver.services.launch.spawner import SpawnSpec
from execserver.services.sessions.host import Session, SessionHost
from execserver.settings import Settings
from tests.services.fakes import FakeSink, FakeSpawner
from tests.support.greenlets import turns
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("loop_failures")

Host = Callable[..., SessionHost]


@pytest.fixture
def host(fake_spawner: FakeSpawner) -> Iterator[Host]:
    """Make a host over played processes; its clocks are stopped after the test."""
    made: list[SessionHost] = []

    def make(**settings: float) -> SessionHost:
        made.append(SessionHost(fake_spawner.as_spawner(), Settings(**settings)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def run_in(session: Session, process_id: str = "p") -> None:
    """Start a process in a session."""
    spec = SpawnSpec([b"x"], {}, b"/")
    session.processes.start(process_id, ["x"], spec, ProcessTemplates(process_id)).begin()


def refusal(host: SessionHost, session_id: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        host.resume(session_id)
    return caught.value.message


def test_a_new_session_has_an_id_of_its_own(host: Host) -> None:
    sessions = host()
    first, second = sessions.open(), sessions.open()
    assert first.session_id != second.session_id
    assert str(uuid.UUID(first.session_id)) == first.session_id
    assert uuid.UUID(first.session_id).version == 4
    assert len(sessions) == 2


def test_process_ids_are_per_session(host: Host) -> None:
    sessions = host()
    first, second = sessions.open(), sessions.open()
    run_in(first)
    run_in(second)
    assert first.processes.find("p") is not second.processes.find("p")


def test_a_detached_session_can_be_resumed(host: Host) -> None:
    sessions = host()
    session = sessions.open()
    run_in(session)
    sessions.detach(session)
    assert sessions.resume(session.session_id) is session
    assert session.processes.find("p") is not None


def test_an_unknown_session_is_refused(host: Host) -> None:
    assert refusal(host(), "nope") == "unknown session id nope"


def test_an_attached_session_is_refused(host: Host) -> None:
    sessions = host()
    session = sessions.open()
    with pytest.raises(SessionAlreadyAttached) as caught:
        sessions.resume(session.session_id)
    assert caught.value.code == -32010
    assert caught.value.message == f"session {session.session_id} is already attached to another connection"


def test_a_client_that_is_back_at_once_waits_for_the_end_of_its_old_connection(host: Host) -> None:
    """Its end lies in the kernel, and is looked at by the event loop only."""
    sessions = host()
    session = sessions.open()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ended = get_hub().loop.io(ours.fileno(), 1)

        def end() -> None:
            ended.stop()
            sessions.detach(session)

        ended.start(end)
        turns()
        theirs.close()
        assert sessions.resume(session.session_id) is session


def test_notifications_go_to_the_client_of_the_moment(host: Host, fake_spawner: FakeSpawner) -> None:
    sessions = host()
    session = sessions.open()
    first, second = FakeSink(), FakeSink()
    run_in(session)
    (run,) = fake_spawner.runs
    session.attach(first)
    run.write("stdout", b"1")
    sessions.detach(session)
    run.write("stdout", b"2")
    sessions.resume(session.session_id).attach(second)
    run.write("stdout", b"3")
    assert [b'"seq":1' in message for message in first.messages] == [True]
    assert [b'"seq":3' in message for message in second.messages] == [True]


def test_a_producer_goes_on_when_its_client_leaves(host: Host, fake_spawner: FakeSpawner) -> None:
    sessions = host()
    session = sessions.open()
    sink = FakeSink()
    session.attach(sink)
    run_in(session)
    (run,) = fake_spawner.runs
    sink.fill()
    run.write("stdout", b"held back")
    process = session.processes.known("p")
    assert process.state.log.next_seq == 1
    sink.close()
    sessions.detach(session)
    turns()
    assert process.state.log.text_of("stdout") == b"held back"


def test_a_session_that_nobody_resumes_ends_with_its_processes(host: Host, fake_spawner: FakeSpawner) -> None:
    sessions = host(detached_session_ttl_s=0.01)
    kept, left = sessions.open(), sessions.open()
    run_in(kept)
    run_in(left)
    sessions.detach(left)
    wait_until(lambda: len(sessions) == 1, pause=gevent.sleep)
    wait_until(lambda: fake_spawner.runs[1].signals, pause=gevent.sleep)
    assert [run.signals for run in fake_spawner.runs] == [[], [9]]
    assert refusal(sessions, left.session_id) == f"unknown session id {left.session_id}"


def test_a_resumed_session_does_not_end(host: Host) -> None:
    sessions = host(detached_session_ttl_s=0.01)
    resumed, left = sessions.open(), sessions.open()
    sessions.detach(resumed)
    sessions.resume(resumed.session_id)
    sessions.detach(left)
    wait_until(lambda: len(sessions) == 1, pause=gevent.sleep)
    assert refusal(sessions, left.session_id).startswith("unknown")
    with pytest.raises(SessionAlreadyAttached):
        sessions.resume(resumed.session_id)


def test_at_the_bound_the_session_detached_longest_ends(host: Host, fake_spawner: FakeSpawner) -> None:
    sessions = host(max_detached_sessions=2)
    opened = [sessions.open() for _ in range(4)]
    for session in opened:
        run_in(session)
    for session in opened[1:]:
        sessions.detach(session)
    turns()
    assert [run.signals for run in fake_spawner.runs] == [[], [9], [], []]
    assert len(sessions) == 3
    assert sessions.resume(opened[2].session_id) is opened[2]


def test_closed_processes_are_forgotten_after_their_time(host: Host, fake_spawner: FakeSpawner) -> None:
    sessions = host(closed_process_retention_s=0.01)
    session = sessions.open()
    run_in(session)
    fake_spawner.runs[0].end()
    assert session.processes.find("p") is not None
    wait_until(lambda: session.processes.find("p") is None, pause=gevent.sleep)


def test_output_is_retained_up_to_the_setting(host: Host, fake_spawner: FakeSpawner) -> None:
    session = host(retained_output_bytes=10).open()
    run_in(session)
    for piece in (b"12345", b"67890", b"x"):
        fake_spawner.runs[0].write("stdout", piece)
    assert session.processes.known("p").state.log.text_of("stdout") == b"67890x"


def test_closing_stops_the_clocks(host: Host) -> None:
    sessions = host(detached_session_ttl_s=0.001)
    sessions.detach(sessions.open())
    sessions.close()
    gevent.sleep(0.01)
    assert len(sessions) == 1
