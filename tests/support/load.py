"""A mixed load as many clients make it, and what a server's process holds before and after."""

from __future__ import annotations

from typing import NamedTuple

from tests.support import proc
from tests.support.peer import Json, Peer, encode
from tests.support.running import start, start_params
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.ws_peer import CONTINUATION, TEXT, client_frame

MIB = 1024 * 1024
_REQUESTS_AT_ONCE = 100
_PROCESSES_AT_ONCE = 8
_PIECE_BYTES = MIB


class Load(NamedTuple):
    """How much of each."""

    requests: int
    processes: int
    resumptions: int
    abandoned_sessions: int


class Held(NamedTuple):
    """What a server holds: resident memory, descriptors and threads."""

    resident: int
    descriptors: int
    threads: int


def held_by(server: ServerProcess) -> Held:
    """Look at a server's process."""
    descriptors = len(proc.descriptors(server.pid))
    return Held(proc.resident_bytes(server.pid), descriptors, proc.thread_count(server.pid))


def play(server: ServerProcess, load: Load, name: str) -> None:
    """Play a load over one lasting connection and many short ones; `name` keeps its processes apart."""
    with server.connect() as peer:
        peer.open_session()
        for first in range(0, load.requests, _REQUESTS_AT_ONCE):
            ask(peer, range(first, min(first + _REQUESTS_AT_ONCE, load.requests)))
        for first in range(0, load.processes, _PROCESSES_AT_ONCE):
            last = min(first + _PROCESSES_AT_ONCE, load.processes)
            run_all(peer, [(f"{name}{number}", number) for number in range(first, last)])
    session_id = None
    for _ in range(load.resumptions):
        with server.connect() as peer:
            session_id = peer.open_session(session_id)
            peer.call("environment/info", {})
    for number in range(load.abandoned_sessions):
        with server.connect() as peer:
            peer.open_session()
            start(peer, "lives", ["sleep", "1000"], tty=number % 2 == 0)
            start(peer, "ends", ["true"])


def ask(peer: Peer, ids: range) -> None:
    """Send small requests together and take their answers."""
    params = {"path": "file:///etc/passwd"}
    texts = [encode({"id": number, "method": "fs/getMetadata", "params": params}) for number in ids]
    for text in texts:
        peer.send_text(text)
    for number in ids:
        peer.take({"id": number})


def run_all(peer: Peer, processes: list[tuple[str, int]]) -> None:
    """Start processes together, every fourth with a terminal and every second with an input."""
    for process_id, number in processes:
        members: Json = {"tty": number % 4 == 3, "pipeStdin": number % 2 == 0}
        params = start_params(process_id, ["echo", "seen"], **members)
        peer.send({"id": process_id, "method": "process/start", "params": params})
    left = {process_id for process_id, _ in processes}
    while left:
        message = peer.receive()
        assert message is not None
        if message.get("method") == "process/closed":
            left.discard(message["params"]["processId"])


def send_unfinished(server: ServerProcess, connections: int, size: int) -> None:
    """Send messages that lack their ends over some connections; leave once the server holds them."""
    before = proc.resident_bytes(server.pid)
    piece = client_frame(CONTINUATION, b"x" * _PIECE_BYTES, final=False)
    peers = [server.connect() for _ in range(connections)]
    for peer in peers:
        peer.send_frame(TEXT, b"x", final=False)
        for _ in range(size // _PIECE_BYTES):
            peer.send_raw(piece)
    wait_until(lambda: proc.resident_bytes(server.pid) - before > connections * size * 0.9, 30.0)
    for peer in peers:
        peer.close()
