"""Compares live notifications with recorded ones, as the wire contract lets them differ.

Bytes per stream are joined, seqs must be a permutation of 1..n with closed = n, and an exit code after a
terminate may be either of two values. A recorded notification is also a sync point: the live one is waited
for before the next line.
"""

from __future__ import annotations

import base64

from tests.support.differences import Differences
from tests.support.live import AFTER_TERMINATE, TYPED_BY_CLOSE, Connection, Report, Trace
from tests.support.peer import Json
from tests.support.scene import Scene
from tests.support.transcript import Bindings, Line


class NotificationJudge:
    """Judges the notifications of one replay."""

    def __init__(self, scene: Scene, bindings: Bindings, differences: Differences, report: Report) -> None:
        """Judge by these; every difference goes to `report`."""
        self.scene = scene
        self.bindings = bindings
        self.differences = differences
        self.report = report

    def expect(self, conn: Connection, line: Line) -> None:
        """Wait for what a recorded notification tells of, and report how it differs."""
        params = line.msg["params"]
        if line.msg["method"] == "http/request/bodyDelta":
            self._expect_delta(conn, line, params)
            return
        trace = conn.traces.setdefault(params["processId"], Trace(0))
        if self.differences.leaves_out(f"{line.conn}:{params['processId']}"):
            return
        if not trace.given_up:
            step = {
                "process/output": self._output,
                "process/exited": self._exited,
                "process/closed": self._closed,
            }
            if not step[line.msg["method"]](conn, line, params, trace):
                trace.given_up = True

    def _output(self, conn: Connection, line: Line, params: Json, trace: Trace) -> bool:
        process_id, stream = params["processId"], params["stream"]
        name = f"{line.conn}:{process_id}"
        if name in self.scene.varying:
            return True
        recorded = trace.streams.setdefault(stream, bytearray())
        ours = self.differences.output(name)
        if ours is not None:
            recorded[:] = str(self.bindings.fill(ours)).encode()
            # What is recorded next may end the process; by now it had written this much.
            trace.recorded_bytes += len(self.bindings.fill_bytes(params["chunk"]))
            enough = min(trace.recorded_bytes, len(recorded))
            conn.wait(lambda: len(conn.output(process_id, stream, trace.start)) >= enough)
            return True
        recorded += self.bindings.fill_bytes(params["chunk"])
        if trace.terminated and bytes(recorded).endswith(b"\r\n") and stream == "pty":
            return True
        if conn.wait(lambda: len(conn.output(process_id, stream, trace.start)) >= len(recorded)):
            return True
        got = conn.output(process_id, stream, trace.start)
        self.report(line, f"output of {process_id}: {got!r} instead of {bytes(recorded)!r}")
        return False

    def _exited(self, conn: Connection, line: Line, params: Json, trace: Trace) -> bool:
        process_id = params["processId"]
        if not conn.wait(lambda: conn.has("process/exited", process_id, trace.start)):
            self.report(line, f"{process_id} did not exit")
            return False
        live = next(p for m, p in conn.of("processId", process_id, trace.start) if m == "process/exited")
        live = self.differences.without_added("process/exited", live, params)
        code = self.differences.exit_code(f"{line.conn}:{process_id}", params["exitCode"])
        wanted = {code} | (AFTER_TERMINATE if code in AFTER_TERMINATE else set())
        if trace.terminated and self.differences.is_empty:
            wanted |= AFTER_TERMINATE  # rarely, the reference says -1 for a terminal as well
        if list(live) != list(params) or live["exitCode"] not in wanted:
            self.report(line, f"{live} instead of {params}")
        return True

    def _closed(self, conn: Connection, line: Line, params: Json, trace: Trace) -> bool:
        process_id = params["processId"]
        if not conn.wait(lambda: conn.has("process/closed", process_id, trace.start)):
            self.report(line, f"{process_id} did not close")
            return False
        live = conn.of("processId", process_id, trace.start)
        seqs = sorted(p["seq"] for _, p in live)
        closed = next(p for m, p in live if m == "process/closed")
        if seqs != list(range(1, len(seqs) + 1)) or closed["seq"] != len(seqs):
            self.report(line, f"{process_id}: seqs {[p['seq'] for _, p in live]}, closed {closed['seq']}")
        if list(closed) != list(params):
            self.report(line, f"{closed} instead of {params}")
        self._compare_streams(conn, line, process_id, trace)
        return True

    def _compare_streams(self, conn: Connection, line: Line, process_id: str, trace: Trace) -> None:
        name = f"{line.conn}:{process_id}"
        live = conn.of("processId", process_id, trace.start)
        streams = {p["stream"] for m, p in live if m == "process/output"}
        check = self.scene.varying.get(name)
        if check is not None:
            everything = b"".join(conn.output(process_id, s, trace.start) for s in sorted(streams))
            if not check(everything):
                self.report(line, f"output of {process_id}: {everything[:200]!r}")
            return
        for stream in streams | set(trace.streams):
            got = self.scene.normalise(conn.output(process_id, stream, trace.start))
            recorded = bytes(trace.streams.get(stream, b""))
            rests = (got[len(recorded) :], recorded[len(got) :])
            if trace.terminated and stream == "pty" and TYPED_BY_CLOSE in rests:
                continue
            if got != recorded:
                self.report(line, f"{stream} of {process_id}: {got!r} instead of {recorded!r}")

    def _expect_delta(self, conn: Connection, line: Line, params: Json) -> None:
        """Compare a streamed body at its last part; the parts may be cut elsewhere."""
        name = "http " + params["requestId"]
        trace = conn.traces.setdefault(name, Trace(0))
        recorded = trace.streams.setdefault("body", bytearray())
        recorded += base64.b64decode(params["deltaBase64"])
        if not params["done"]:
            return

        def parts() -> list[Json]:
            return [p for _, p in conn.of("requestId", params["requestId"], trace.start)]

        if not conn.wait(lambda: any(p["done"] for p in parts())):
            self.report(line, f"body {params['requestId']} did not end")
            return
        live = parts()
        body = b"".join(base64.b64decode(p["deltaBase64"]) for p in live)
        cut_short = params["error"] is not None and f"{line.conn}:{name}" in self.scene.varying
        whole = bytes(recorded)
        same = whole.startswith(body) or body.startswith(whole) if cut_short else body == whole
        if not same or [p["seq"] for p in live] != list(range(1, len(live) + 1)):
            self.report(line, f"body parts {live} instead of {whole!r}")
        last = {**live[-1], "seq": params["seq"]}
        for fault in self.bindings.compare(params, last):
            self.report(line, fault)

    def after_the_end(self, conn: Connection) -> list[str]:
        """Return the processes that went on talking after they had closed."""
        faults = []
        for process_id, trace in conn.traces.items():
            live = conn.of("processId", process_id, trace.start)
            ends = [params["seq"] for method, params in live if method == "process/closed"]
            if ends and ends != [len(live)]:
                faults.append(
                    f"{conn.name}: {process_id} closed with seq {ends} but sent {len(live)} messages"
                )
        return faults
