"""Starting processes through a peer, and collecting what comes of them.

Notifications are found by process id; those of other processes are kept for whoever asks. Output is put
together in the order of `seq`, since the contract lets notifications arrive in another.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.peer import WAIT, Json, Message, Peer, PeerClosed

PATH = {"PATH": "/usr/bin:/bin"}


@dataclass
class Outcome:
    """What one process has sent: chunks as (seq, stream, bytes), exit code, all seqs in order of arrival."""

    chunks: list[tuple[int, str, bytes]] = field(default_factory=list)
    exit_code: int | None = None
    exited_seq: int | None = None
    closed_seq: int | None = None
    arrival: list[int] = field(default_factory=list)

    def take(self, message: Message) -> None:
        """Take a notification into account."""
        params = message["params"]
        seq = params["seq"]
        self.arrival.append(seq)
        if message["method"] == "process/output":
            self.chunks.append((seq, params["stream"], base64.b64decode(params["chunk"])))
        elif message["method"] == "process/exited":
            self.exit_code, self.exited_seq = params["exitCode"], seq
        else:
            self.closed_seq = seq

    def output(self, stream: str) -> bytes:
        """Return what came from one stream."""
        return b"".join(data for _, name, data in sorted(self.chunks) if name == stream)

    @property
    def stdout(self) -> bytes:
        """What the process wrote to its standard output."""
        return self.output("stdout")

    @property
    def stderr(self) -> bytes:
        """What the process wrote to its standard error."""
        return self.output("stderr")

    @property
    def pty(self) -> bytes:
        """What appeared on the terminal."""
        return self.output("pty")

    @property
    def complete(self) -> bool:
        """Tell whether every notification of the process is there."""
        return self.closed_seq is not None and sorted(self.arrival) == list(range(1, self.closed_seq + 1))


def start_params(process_id: str, command: str | list[str], **members: Json) -> Json:
    """Return the params of a start; a command given as text is a shell script."""
    argv = ["sh", "-c", command] if isinstance(command, str) else command
    return {"processId": process_id, "argv": argv, "cwd": "/", "env": PATH, "tty": False} | members


def start(peer: Peer, process_id: str, command: str | list[str], **members: Json) -> Json:
    """Start a process and return the answer."""
    return peer.call("process/start", start_params(process_id, command, **members))


def take_where(peer: Peer, wanted: Callable[[Message], bool], timeout: float = WAIT) -> Message:
    """Return the first message that is wanted; the others are kept."""
    others = []
    try:
        while True:
            message = peer.receive(timeout)
            if message is None:
                raise PeerClosed("the connection ended before the message that was waited for")
            if wanted(message):
                return message
            others.append(message)
    finally:
        peer.kept.extendleft(reversed(others))


def event(peer: Peer, process_id: str, timeout: float = WAIT) -> Message:
    """Return the next numbered notification about one process: none about its network."""

    def about_it(message: Message) -> bool:
        params = message.get("params", {})
        return "method" in message and "seq" in params and bool(params.get("processId") == process_id)

    return take_where(peer, about_it, timeout)


def outcome(peer: Peer, process_id: str, collected: Outcome | None = None) -> Outcome:
    """Collect the notifications of one process until all are there, beginning with those taken before."""
    collected = Outcome() if collected is None else collected
    while not collected.complete:
        collected.take(event(peer, process_id))
    return collected


def output_until(peer: Peer, process_id: str, needle: bytes, collected: Outcome | None = None) -> bytes:
    """Collect the output of one process until it holds `needle`; return it, all streams joined."""
    collected = Outcome() if collected is None else collected
    while needle not in (found := b"".join(data for _, _, data in sorted(collected.chunks))):
        collected.take(event(peer, process_id))
    return found


def run(peer: Peer, process_id: str, command: str | list[str], **members: Json) -> Outcome:
    """Start a process and collect everything until it has closed."""
    start(peer, process_id, command, **members)
    return outcome(peer, process_id)


def read(peer: Peer, process_id: str, after: int = 0, **members: Json) -> Json:
    """Read retained output."""
    return peer.call("process/read", {"processId": process_id, "afterSeq": after} | members)


def write(peer: Peer, process_id: str, data: bytes, write_id: str) -> str:
    """Write to the input of a process and return the status."""
    params = {"processId": process_id, "chunk": base64.b64encode(data).decode(), "writeId": write_id}
    status: str = peer.call("process/write", params)["status"]
    return status


def terminate(peer: Peer, process_id: str) -> bool:
    """Kill a process and return whether it was running."""
    running: bool = peer.call("process/terminate", {"processId": process_id})["running"]
    return running


def chunks_of(result: Json, stream: str | None = None) -> bytes:
    """Return the joined output in the result of a read."""
    return b"".join(
        base64.b64decode(chunk["chunk"])
        for chunk in result["chunks"]
        if stream is None or chunk["stream"] == stream
    )
