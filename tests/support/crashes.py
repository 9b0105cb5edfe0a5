"""Servers that are killed and go on, and a client that follows processes over that."""

from __future__ import annotations

import base64
import os
import signal
from pathlib import Path

from tests.support import proc
from tests.support.peer import Json, PeerClosed, PeerTimeout
from tests.support.running import start_params
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.ws_peer import WsPeer

MANY: dict[str, object] = {"crash_restarts": 100_000}
WAIT_S = 50.0


def surviving(*options: str, settings: dict[str, object] | None = None, **more: object) -> ServerProcess:
    """Start a server that may be killed often; its process is that of its keeper."""
    return ServerProcess(options=("--survive-crash", *options), settings=settings or MANY, **more)  # type: ignore[arg-type]


def servers_of(keeper: int) -> list[int]:
    """Return the pids of the servers that a keeper has, which is one or none."""
    return [pid for pid in proc.children_of(keeper) if b"--survive-crash" in _words(pid)]


def server_of(keeper: int, but: int = 0) -> int:
    """Return the pid of the server, waiting for it; not that of one before."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [pid for pid in servers_of(keeper) if pid != but]
        return bool(found)

    wait_until(look, WAIT_S)
    return found[0]


def crash(server: ServerProcess) -> int:
    """Kill the server, wherever it is; return the pid that it had."""
    pid = server_of(server.pid)
    os.kill(pid, signal.SIGKILL)
    return pid


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


class Follower:
    """A client that resumes its session whenever its connection has ended, and reads all output once.

    What comes twice under one number must be the same.
    """

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._peer: WsPeer | None = server.connect()
        self.session = self._peer.open_session()
        self.chunks: dict[str, dict[int, tuple[str, bytes]]] = {}
        self.ends: dict[str, Json] = {}
        self.resumed = 0
        self._read_to: dict[str, int] = {}

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *error: object) -> None:
        if self._peer is not None:
            self._peer.close()

    def call(self, method: str, params: Json) -> Json:
        """Make a call, again on another connection where one ends without an answer."""
        while True:
            try:
                return self._connected().call(method, params)
            except (PeerClosed, OSError):
                self._leave()

    def once(self, method: str, params: Json) -> Json | None:
        """Make a call; None where the connection ended without an answer."""
        try:
            return self._connected().call(method, params)
        except (PeerClosed, OSError):
            self._leave()
            return None

    def start(self, process_id: str, command: str | list[str], **members: Json) -> None:
        """Start a process, again if nobody knows of it after a crash."""
        params = start_params(process_id, command, **members)
        while self.once("process/start", params) is None:
            known = self.call("process/list", {})["processes"]
            if process_id in [each["processId"] for each in known]:
                break
        self.chunks[process_id] = {}

    def write(self, process_id: str, data: bytes, write_id: str) -> str:
        """Write to a process, once."""
        chunk = base64.b64encode(data).decode()
        params = {"processId": process_id, "chunk": chunk, "writeId": write_id}
        return str(self.call("process/write", params)["status"])

    def read(self, process_id: str, wait_ms: int = 100) -> Json:
        """Read what is new, and return the answer."""
        own = self.chunks[process_id]
        after = self._read_to.get(process_id, 0)
        while after + 1 in own:
            after += 1
        self._read_to[process_id] = after
        found = self.call("process/read", {"processId": process_id, "afterSeq": after, "waitMs": wait_ms})
        for chunk in found["chunks"]:
            self._take(process_id, chunk["seq"], chunk["stream"], chunk["chunk"])
        self._take_notices()
        if found["closed"]:
            self.ends[process_id] = found
        return found

    def read_all(self, *process_ids: str) -> None:
        """Read until the processes are closed."""
        for process_id in process_ids:
            while process_id not in self.ends:
                self.read(process_id)

    def output(self, process_id: str, stream: str = "stdout") -> bytes:
        """Return what came of one stream."""
        return b"".join(data for _, (name, data) in sorted(self.chunks[process_id].items()) if name == stream)

    def numbers(self, process_id: str) -> list[int]:
        """Return the numbers of all chunks in order."""
        return sorted(self.chunks[process_id])

    def _take_notices(self) -> None:
        while self._peer is not None and self._peer.kept:
            message = self._peer.kept.popleft()
            if message.get("method") == "process/output":
                params = message["params"]
                self._take(params["processId"], params["seq"], params["stream"], params["chunk"])

    def _take(self, process_id: str, seq: int, stream: str, chunk: str) -> None:
        found = stream, base64.b64decode(chunk)
        known = self.chunks[process_id].setdefault(seq, found)
        assert known == found, (process_id, seq)

    def _leave(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def _connected(self) -> WsPeer:
        while self._peer is None:
            try:
                peer = self._server.connect()
            except (OSError, PeerClosed, PeerTimeout, AssertionError):
                assert self._server.process.poll() is None, self._server.errors()
                continue
            try:
                assert peer.open_session(resume=self.session) == self.session
                self._peer = peer
                self.resumed += 1
            except (PeerClosed, OSError):
                peer.close()
        return self._peer
