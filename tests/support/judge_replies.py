"""Compares live replies with recorded ones: every member, in member order.

What may differ: what the file system decides (times, sizes of folders, the order of entries), where output is
cut in chunks, reads that race with the end of a process, and what the table of differences says.
"""

from __future__ import annotations

import base64

from tests.support.differences import Differences
from tests.support.live import AFTER_TERMINATE, TYPED_BY_CLOSE, Connection, Report, Trace
from tests.support.peer import Json, Message
from tests.support.scene import Scene
from tests.support.transcript import Bindings, Line
from tests.support.ws_peer import WsPeer

WS_MALFORMED = "failed to parse websocket JSON-RPC message from exec-server websocket 127.0.0.1:{PORT}: "
STDIO_MALFORMED = "failed to parse JSON-RPC message from exec-server stdio: "


class ReplyJudge:
    """Judges the replies of one replay."""

    def __init__(self, scene: Scene, bindings: Bindings, differences: Differences, report: Report) -> None:
        """Judge by these; every difference goes to `report`."""
        self.scene = scene
        self.bindings = bindings
        self.differences = differences
        self.report = report

    def compare(self, conn: Connection, line: Line, reply: Message) -> None:
        """Report how a live reply differs from the recorded one, then remember what it started or ended."""
        expected = self._recorded(conn, line)
        method = conn.methods.get(line.key, "")
        live = reply
        reply = self._without_added(method, live, expected)
        faults = self._faults(conn, line, expected, reply)
        if faults and self.differences.decode_error(expected, reply):
            faults = []
        if faults and method == "process/terminate" and line.key in self.scene.racy:
            faults = []
        if faults:
            ours = self.differences.reply(line.key)
            if ours is not None:
                ours = self._on_this_carrier(conn, with_id(ours, reply["id"]))
                faults = self._faults(conn, line, ours, self._without_added(method, live, ours))
        for fault in faults:
            self.report(line, f"{method}: {fault}")
        self._after_reply(conn, line, reply)

    def _faults(self, conn: Connection, line: Line, expected: Json, reply: Message) -> list[str]:
        """Return how a reply differs from the one expected."""
        faults = list(self.bindings.compare(expected, reply))
        method = conn.methods.get(line.key, "")
        if faults and method == "process/read" and self._same_read(conn, line, expected, reply):
            return []
        return faults

    def _without_added(self, method: str, reply: Message, expected: Message) -> Message:
        """Return a reply with its entries sorted and without the members that ours adds by policy."""
        if "error" in reply:
            return {**reply, "error": self.differences.without_error_data(reply["error"], expected)}
        if not isinstance(reply.get("result"), dict):
            return reply
        result, members = sorted_entries(reply["result"]), expected.get("result", {})
        if method:
            return {**reply, "result": self.differences.without_added(method, result, members)}
        return {**reply, "result": self.differences.plain_result(result, members)}

    def _recorded(self, conn: Connection, line: Line) -> Json:
        """Return the recorded reply with what this carrier and the timing make of it."""
        expected = self._on_this_carrier(conn, dict(line.msg))
        result = expected.get("result")
        if isinstance(result, dict):
            if result.get("exitCode") in AFTER_TERMINATE and self._was_terminated(conn, line):
                result = {**result, "exitCode": "{CODE}"}
            expected["result"] = normalised_result(result)
        return expected

    @staticmethod
    def _on_this_carrier(conn: Connection, expected: Message) -> Message:
        """Put this carrier's name into the text about a malformed message."""
        if "error" not in expected or "{PORT}" not in expected["error"]["message"]:
            return expected
        text = expected["error"]["message"]
        if isinstance(conn.peer, WsPeer):
            text = text.replace("websocket 127.0.0.1:{PORT}", f"websocket {conn.peer.address}")
        else:
            text = text.replace(WS_MALFORMED, STDIO_MALFORMED)
        return {**expected, "error": {**expected["error"], "message": text}}

    def _was_terminated(self, conn: Connection, line: Line) -> bool:
        params = conn.requests[line.key].get("params") or {}
        trace = conn.traces.get(params.get("processId", ""))
        return trace is not None and trace.terminated

    def _same_read(self, conn: Connection, line: Line, expected: Json, reply: Message) -> bool:
        """Compare two reads whose chunks may be cut elsewhere, or that raced with the close."""
        left, right = expected.get("result"), reply.get("result")
        if left is None or right is None or list(left) != list(right):
            return False
        request = conn.requests[line.key]["params"]
        if request.get("maxBytes") is not None:
            return False
        got, recorded = joined(right["chunks"]), joined(left["chunks"])
        if (
            self._was_terminated(conn, line)
            and got.get("pty", b"") == recorded.get("pty", b"") + TYPED_BY_CLOSE
        ):
            return bool(right["exited"])
        if got != recorded:
            return False
        if line.key in self.scene.racy:
            return bool(right["exited"]) and right["exitCode"] == left["exitCode"]
        if f"{line.conn}:{request['processId']}" in self.scene.varying:
            return True
        same = set(left) - {"chunks"}
        if len(left["chunks"]) != len(right["chunks"]):
            same.remove("nextSeq")
        seqs = [chunk["seq"] for chunk in right["chunks"]]
        return seqs == sorted(set(seqs)) and all(left[name] == right[name] for name in same)

    def _after_reply(self, conn: Connection, line: Line, reply: Message) -> None:
        request = conn.requests.get(line.key, {})
        method, params = request.get("method"), request.get("params")
        result = reply.get("result")
        if method == "initialize" and isinstance(result, dict) and "SESSION_1" not in self.bindings.values:
            self.bindings.values["SESSION_1"] = result["sessionId"]
        if not isinstance(params, dict) or not isinstance(result, dict):
            return
        if method == "process/start":
            conn.traces[params["processId"]] = Trace(request["start"])
        elif method == "process/terminate" and params["processId"] in conn.traces and result["running"]:
            conn.traces[params["processId"]].terminated = True
        elif method == "http/request" and params.get("streamResponse"):
            conn.traces["http " + params["requestId"]] = Trace(len(conn.notifications))


def with_id(body: Message, call_id: Json) -> Message:
    """Put the id where the wire has it: before a result, after an error."""
    return {"id": call_id, **body} if "result" in body else {**body, "id": call_id}


def normalised_result(result: dict[str, Json]) -> dict[str, Json]:
    """Put free placeholders in for what depends on the file system: times and the sizes of directories."""
    if result.get("modifiedAtMs"):
        result = {**result, "modifiedAtMs": "{MS}"}
    if result.get("createdAtMs"):
        result = {**result, "createdAtMs": "{MS}"}
    if result.get("isDirectory"):
        result = {**result, "size": "{MS}"}
    return sorted_entries(result)


def sorted_entries(result: dict[str, Json]) -> dict[str, Json]:
    """Put directory entries in order of their names: the contract leaves their order open."""
    if isinstance(result.get("entries"), list) and all("fileName" in entry for entry in result["entries"]):
        return {**result, "entries": sorted(result["entries"], key=lambda entry: str(entry["fileName"]))}
    return result


def joined(chunks: list[Json]) -> dict[str, bytes]:
    """Return the bytes of each stream of a chunk list."""
    streams: dict[str, bytes] = {}
    for chunk in chunks:
        streams[chunk["stream"]] = streams.get(chunk["stream"], b"") + base64.b64decode(chunk["chunk"])
    return streams
