"""However a client leaves, and whatever the server is busy with: its session can be resumed at once.

A real client tries again at once, and must not be told that its own old connection still holds the session.
"""

from __future__ import annotations

import base64
import os
import pty
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import Connect, StartServer
from tests.support.peer import RemoteError
from tests.support.proc import state, zygotes_of
from tests.support.running import read, start, start_params
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.ws_peer import CLOSE, TEXT, WsPeer, client_frame

ALREADY_ATTACHED = -32010
LARGE = 32 * 1024 * 1024


def close_frame(peer: WsPeer) -> None:
    peer.send_frame(CLOSE, (1000).to_bytes(2, "big"))


def end_of_stream(peer: WsPeer) -> None:
    peer.socket.shutdown(socket.SHUT_WR)


def reset(peer: WsPeer) -> None:
    peer.abort()


def crash(peer: WsPeer) -> None:
    peer.close()


def violation(peer: WsPeer) -> None:
    peer.send_text('{"method":"bogus"}')


def broken_frame(peer: WsPeer) -> None:
    peer.send_raw(b"\x81\x02{}")


Leave = Callable[[WsPeer], None]
PHYSICAL: list[Leave] = [close_frame, end_of_stream, reset, crash]
LEAVES: list[Leave] = [*PHYSICAL, violation, broken_frame]


def resume(connect: Connect, server: ServerProcess, session: str) -> WsPeer:
    """Resume in one attempt; the reference may need some until it has noticed."""
    peer = connect(server)

    def attempt() -> bool:
        try:
            assert peer.open_session(session) == session
        except RemoteError as error:
            if server.flavour.is_reference and error.code == ALREADY_ATTACHED:
                return False
            raise
        return True

    wait_until(attempt)
    return peer


@pytest.mark.parametrize("leave", LEAVES)
def test_an_idle_session_is_free_at_once(connect: Connect, server: ServerProcess, leave: Leave) -> None:
    peer = connect()
    session = peer.open_session()
    leave(peer)
    resume(connect, server, session).call("environment/info")


@pytest.mark.parametrize("leave", LEAVES)
def test_a_session_with_a_running_process_is_free_at_once(
    connect: Connect, server: ServerProcess, leave: Leave
) -> None:
    peer = connect()
    session = peer.open_session()
    start(peer, "p", "while :; do echo x; done")
    leave(peer)
    resumed = resume(connect, server, session)
    assert resumed.call("process/terminate", {"processId": "p"}) == {"running": True}


def test_an_attached_session_is_refused_and_not_disturbed(connect: Connect) -> None:
    holder, other = connect(), connect()
    session = holder.open_session()
    with pytest.raises(
        RemoteError, match=f"session {session} is already attached to another connection"
    ) as refusal:
        other.open_session(session)
    assert refusal.value.code == ALREADY_ATTACHED
    assert holder.call("environment/info")
    assert other.open_session() != session


def test_sessions_do_not_see_each_other(connect: Connect) -> None:
    one, two = connect(), connect()
    one.open_session()
    two.open_session()
    start(one, "p", "exec sleep 100")
    with pytest.raises(RemoteError, match="unknown process id p"):
        read(two, "p")
    assert two.call("process/terminate", {"processId": "p"}) == {"running": False}
    start(two, "p", "exec sleep 100")
    assert one.call("process/terminate", {"processId": "p"}) == {"running": True}
    assert two.call("process/terminate", {"processId": "p"}) == {"running": True}


@contextmanager
def waiting_read(peer: WsPeer) -> Iterator[None]:
    """A read that waits for half a minute."""
    start(peer, "p", "exec sleep 100")
    peer.send({"id": 9, "method": "process/read", "params": {"processId": "p", "waitMs": 30_000}})
    yield


@contextmanager
def blocked_write(peer: WsPeer) -> Iterator[None]:
    """A write to a terminal that nobody reads, which takes seconds to be given up."""
    master, slave = pty.openpty()
    try:
        data = base64.b64encode(b"x" * 200_000).decode()
        params = {"path": os.ttyname(slave), "dataBase64": data}
        peer.send({"id": 9, "method": "fs/writeFile", "params": params})
        yield
    finally:
        os.close(slave)
        os.close(master)


@contextmanager
def unread_answer(peer: WsPeer) -> Iterator[None]:
    """A large answer that the client does not read."""
    path = Path("/dev/shm") / f"large-{os.getpid()}"
    with path.open("wb") as file:
        file.truncate(LARGE)
    try:
        peer.send({"id": 9, "method": "fs/readFile", "params": {"path": str(path)}})
        yield
    finally:
        path.unlink()


Busy = Callable[[WsPeer], AbstractContextManager[None]]
BUSY: list[Busy] = [waiting_read, blocked_write, unread_answer]


@pytest.mark.ours_only("the reference hangs in such a write")
@pytest.mark.parametrize("leave", PHYSICAL)
@pytest.mark.parametrize("busy", BUSY)
def test_a_busy_session_is_free_at_once(
    start_server: StartServer, connect: Connect, leave: Leave, busy: Busy
) -> None:
    server = start_server()
    peer = connect(server)
    session = peer.open_session()
    with busy(peer):
        peer.send({"id": 10, "method": "environment/info"})
        leave(peer)
        resumed = resume(connect, server, session)
        assert resumed.call("environment/info")


@contextmanager
def stopped_zygote(server: ServerProcess) -> Iterator[None]:
    """Keep the server from starting anything: a start hangs as on a dead network file system."""
    (zygote,) = zygotes_of(server.pid)
    os.kill(zygote, signal.SIGSTOP)
    wait_until(lambda: state(zygote) == "T")
    try:
        yield
    finally:
        os.kill(zygote, signal.SIGCONT)


@pytest.mark.ours_only("a process that ours has")
@pytest.mark.parametrize("leave", PHYSICAL)
def test_a_session_is_free_while_a_start_hangs(
    start_server: StartServer, connect: Connect, leave: Leave
) -> None:
    server = start_server()
    peer = connect(server)
    session = peer.open_session()
    with stopped_zygote(server):
        known = client_frame(TEXT, b'{"id":8,"method":"environment/info"}')
        peer.send_raw(known)
        peer.send({"id": 9, "method": "process/start", "params": start_params("p", "exec sleep 100")})
        peer.take({"id": 8})
        leave(peer)
        resumed = resume(connect, server, session)
        with pytest.raises(RemoteError):
            resumed.call("process/read", {"processId": "p"})
