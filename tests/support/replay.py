"""Replays a transcript against a running server and reports every difference.

Requests are sent in the recorded order, a recorded answer is waited for before the next line is played, so a
pipelined passage stays pipelined and a dialogue stays a dialogue. Replies are compared member by member, in
member order. Notifications are compared as the wire contract lets them differ: bytes per stream joined, seqs
a permutation of 1..n with closed = n, exit codes after a terminate either of two values. Everything else must
be equal.
"""

from __future__ import annotations

import json
import time

from tests.support.differences import Differences
from tests.support.judge_notifications import NotificationJudge
from tests.support.judge_replies import ReplyJudge
from tests.support.live import Connection
from tests.support.peer import Message
from tests.support.scene import Scene, Stage
from tests.support.transcript import Bindings, Line, lines_of
from tests.support.ws_peer import Ending, WsPeer

RETRY_WAIT = 10.0


class Replay:
    """One run of one transcript."""

    def __init__(self, name: str, stage: Stage, scene: Scene, differences: Differences) -> None:
        """Prepare a run."""
        self.lines = lines_of(name)
        self.stage = stage
        self.scene = scene
        self.differences = differences
        self.bindings = Bindings(scene.values, scene.cuts)
        self.connections: dict[str, Connection] = {}
        self.failures: list[str] = []
        self.replies = ReplyJudge(scene, self.bindings, differences, self.fail)
        self.notifications = NotificationJudge(scene, self.bindings, differences, self.fail)
        self.summaries = [json.loads(line.note) for line in self.lines if line.note.startswith('{"cmd"')]
        self.big_outputs = 0

    def run(self) -> list[str]:
        """Play every line; return what differed."""
        try:
            for line in self.lines:
                self._play(line)
            for conn in self.connections.values():
                conn.drain()
                self.failures += [f"{conn.name}: reply nobody recorded: {reply}" for reply in conn.replies]
                self.failures += self.notifications.after_the_end(conn)
        finally:
            for conn in self.connections.values():
                conn.peer.close()
        return self.failures

    def fail(self, line: Line, text: str) -> None:
        """Record a difference."""
        self.failures.append(f"line {line.number} {line.key or line.conn}: {text}")

    def _play(self, line: Line) -> None:
        if line.kind == "note":
            self._play_note(line)
        elif line.kind.startswith("c2s"):
            self._send(line)
        elif line.kind == "s2c-close":
            self._expect_end(line)
        elif line.kind == "path":
            self._try_path(line)
        elif "id" in line.msg:
            self._expect_reply(line)
        else:
            self.notifications.expect(self.connection(line.conn), line)

    def _play_note(self, line: Line) -> None:
        for beginning, hook in self.scene.at_note.items():
            if line.note.startswith(beginning):
                hook(self)

    def connection(self, name: str) -> Connection:
        """Return the connection of this name, opened when it is new."""
        if name not in self.connections:
            self.connections[name] = Connection(name, self.stage.open(name))
        return self.connections[name]

    def reconnect(self, name: str) -> Connection:
        """Open a connection and its session, unless it is open already."""
        found = self.connections.get(name)
        if found is None or found.ended:
            if found is not None:
                found.peer.close()
            found = self.connections[name] = Connection(name, self.stage.open(name))
            found.peer.open_session()
        return found

    def characters(self, subject: str) -> dict[str, str]:
        """Return what two notes say about single characters: those kept, and what the others become."""
        notes = [line.note for line in self.lines if line.note.startswith(subject)]
        kept = next(note.partition(" kept")[2].partition(": ")[2] for note in notes if " kept" in note)
        changed = json.loads(next(note[note.index("{") :] for note in notes if " kept" not in note))
        table = {character: character for character in kept if character not in "/"}
        return table | {chr(int(name[2:], 16)): text for name, text in changed.items()}

    # Sending

    def _send(self, line: Line) -> None:
        hook = self.scene.before.get(line.key)
        if hook is not None:
            hook(self)
        if self.differences.leaves_out_line(line.key, line.number):
            return
        conn = self.connection(line.conn)
        if line.raw is None and line.msg is None:
            self._play_note(line)
            return
        if line.kind == "c2s-binary":
            assert isinstance(conn.peer, WsPeer)
            raw = str(line.raw)
            conn.peer.send_binary(self.scene.binary.get(raw, raw.encode()))
        elif line.raw is not None:
            conn.peer.send_text(self.bindings.fill(line.raw))
        else:
            self._send_message(conn, line)

    def _send_message(self, conn: Connection, line: Line) -> None:
        message = self.bindings.fill(line.msg)
        if "id" in message and "method" in message:
            params = message.get("params")
            conn.methods[line.key] = message["method"]
            conn.requests[line.key] = message
            if message["method"] == "process/start" and isinstance(params, dict):
                conn.requests[line.key] = {**message, "start": len(conn.notifications)}
        conn.peer.send(message)

    # Replies

    def _expect_reply(self, line: Line) -> None:
        if self.differences.leaves_out(line.key):
            return
        conn = self.connection(line.conn)
        wanted = self.differences.reply_id(line.key, line.msg["id"])
        deadline = time.monotonic() + RETRY_WAIT
        while True:
            if not conn.wait(lambda: any(reply["id"] == wanted for reply in conn.replies)):
                self.fail(line, "no reply" + (": the connection ended" if conn.ended else ""))
                if conn.ended:
                    self.reconnect(line.conn)
                return
            reply = next(reply for reply in conn.replies if reply["id"] == wanted)
            if not self._must_retry(conn, line, reply) or time.monotonic() > deadline:
                break
            conn.replies.remove(reply)
            time.sleep(0.1)
            conn.peer.send(conn.requests[line.key])
        self._check_order(conn, line, reply)
        conn.replies.remove(reply)
        self.replies.compare(conn, line, reply)

    def _must_retry(self, conn: Connection, line: Line, reply: Message) -> bool:
        """The old connection's end may not have been seen yet: the real client tries again, so do we."""
        return (
            "result" in line.msg
            and conn.methods.get(line.key) == "initialize"
            and reply.get("error", {}).get("code") == -32010
        )

    def _check_order(self, conn: Connection, line: Line, reply: Message) -> None:
        """A reply that others overtook is found behind them in the list of those not yet taken."""
        for other in conn.replies[: conn.replies.index(reply)]:
            key = f"{line.conn}:{other['id']}"
            if not self.differences.may_overtake(key, line.key):
                self.fail(line, f"the reply to {key} came first")

    # Ends

    def _expect_end(self, line: Line) -> None:
        if self.differences.leaves_out_line(line.key, line.number):
            return
        conn = self.connection(line.conn)
        cause = self.scene.before_end.get(line.conn)
        if cause is not None:
            cause(self)
        hook = self.scene.client_closes.get(line.conn)
        if hook is not None:
            hook(self)
            return
        if not conn.wait(lambda: conn.ended):
            self.fail(line, "the connection was not closed")
        elif isinstance(conn.peer, WsPeer):
            code = self.differences.close_code(line.conn)
            live = (conn.peer.ending, conn.peer.close_code)
            if code is not None and live != (Ending.CLOSE_FRAME, code):
                self.fail(line, f"ended with {live} instead of a Close frame with code {code}")
            elif code is None and conn.peer.ending is Ending.CLOSE_FRAME:
                self.fail(line, f"ended with a Close frame, code {conn.peer.close_code}")

    def _try_path(self, line: Line) -> None:
        """Play a line of the form {"path": URI, "reply": what fs/canonicalize answers}."""
        conn = self.reconnect("a") if "a" not in self.connections else self.connections["a"]
        path, recorded = line.other["path"], line.other["reply"]
        conn.peer.send({"id": line.number, "method": "fs/canonicalize", "params": {"path": path}})
        reply = conn.peer.take({"id": line.number})
        live = reply.get("result", reply.get("error"))
        if live != recorded and live != self.differences.reply(path):
            self.fail(line, f"{path}: {live} instead of {recorded}")
