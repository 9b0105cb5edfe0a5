"""The figures of a server, for Prometheus.

Names of the reference stay, in Prometheus' spelling (`exec_server.requests.total` is
`exec_server_requests_total`); figures that it does not have begin with `execserver_`.  No label holds an id,
a path or a word of a command: their number is not bounded, and the page must not show what is run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import gevent

from execserver.exposition import Histogram, counter_lines, gauges_lines, page, process_lines
from execserver.protocol.methods import METHODS
from execserver.services.reporting.observers import Answered, Started
from execserver.services.running.process import Process

_REQUEST_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
_PROCESS_S = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 28800.0)
_DELAY_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_LOOK_S = 1.0
UNKNOWN = "unknown"

Gauges = dict[str, tuple[str, float]]


class ServerMetrics:
    """An `Observer` that counts; `gauges` returns what there is at the moment."""

    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self._gauges = gauges
        self._active = self._connections = self._processes = self._bad_traces = 0
        self._requests: Counter[tuple[str, ...]] = Counter()
        self._finished: Counter[tuple[str, ...]] = Counter()
        self._denials: Counter[tuple[str, ...]] = Counter()
        self._starts: Counter[tuple[str, ...]] = Counter()
        self._request_s = Histogram(_REQUEST_S)
        self._process_s = Histogram(_PROCESS_S)
        self._delay_s = Histogram(_DELAY_S)
        self._watch: gevent.Greenlet[..., None] | None = None

    def start(self) -> None:
        """Begin to measure how late the event loop is."""
        self._watch = gevent.spawn(self._look_at_the_loop)

    def close(self) -> None:
        """Stop measuring."""
        if self._watch is not None:
            self._watch.kill()

    def connected(self) -> None:
        """See `Observer`."""
        self._active += 1
        self._connections += 1

    def disconnected(self) -> None:
        """See `Observer`."""
        self._active -= 1

    def answered(self, answered: Answered) -> None:
        """See `Observer`."""
        method = answered.request.method
        labels = (method if method in METHODS else UNKNOWN, answered.result)
        self._requests[labels] += 1
        self._request_s.add(answered.seconds, labels)

    def bad_trace(self) -> None:
        """See `Observer`."""
        self._bad_traces += 1

    def process_started(self, started: Started) -> None:
        """See `Observer`."""
        self._processes += 1
        self._starts[("yes" if started.is_sandboxed else "no",)] += 1

    def process_taken_over(self, process: Process) -> None:
        """See `Observer`."""
        self._processes += 1

    def process_exited(self, process: Process) -> None:
        """See `Observer`."""
        self._processes -= 1
        state = process.state
        self._finished[(_end_of(process), _cause_of(process))] += 1
        self._process_s.add(time.time() - process.started_at)
        if state.sandbox_refusal:
            self._denials[("refused",)] += 1
        elif state.sandbox_denied:
            self._denials[("denied",)] += 1

    def refusal(self, method: str) -> str | None:
        """See `Observer`: counting refuses nothing."""
        return None

    def page(self) -> bytes:
        """Return the page."""
        labels, ways = ("method", "result"), ("result", "cause")
        return page(
            [
                *gauges_lines(
                    {
                        "exec_server_connections_active": ("Connected clients", self._active),
                        "exec_server_processes_active": ("Processes that run", self._processes),
                        **self._gauges(),
                    }
                ),
                *counter_lines(
                    *("exec_server_connections_total", "Clients that connected", ()),
                    [((), self._connections)],
                ),
                *counter_lines(
                    *("exec_server_requests_total", "Requests by method and result", labels),
                    self._requests.items(),
                ),
                *self._request_s.lines(
                    "exec_server_request_duration_seconds", "From a request to its answer", labels
                ),
                *counter_lines(
                    *("exec_server_processes_finished_total", "Processes that ended, how and why", ways),
                    self._finished.items(),
                ),
                *self._process_s.lines("exec_server_process_duration_seconds", "From start to end"),
                *counter_lines(
                    *("execserver_starts_total", "Processes that were started", ("sandboxed",)),
                    self._starts.items(),
                ),
                *counter_lines(
                    *("execserver_sandbox_denials_total", "Processes a sandbox stopped", ("reason",)),
                    self._denials.items(),
                ),
                *counter_lines(
                    *("execserver_bad_traces_total", "Requests whose traceparent is none", ()),
                    [((), self._bad_traces)],
                ),
                *self._delay_s.lines(
                    "execserver_event_loop_delay_seconds",
                    "How late the event loop was, looked at each second",
                ),
                *process_lines(),
            ]
        )

    def _look_at_the_loop(self) -> None:
        while True:
            began = time.monotonic()
            gevent.sleep(_LOOK_S)
            self._delay_s.add(max(0.0, time.monotonic() - began - _LOOK_S))


def _end_of(process: Process) -> str:
    """Return how a process ended: `success`, `error`, or `terminated` by its client or the server."""
    if process.state.terminated:
        return "terminated"
    return "error" if process.state.exit_code else "success"


def _cause_of(process: Process) -> str:
    """Return why a process ended, in the words of `process/exited.ended`; `exited` if by itself."""
    if process.state.terminated:
        return "terminated"
    ended, _ = process.ending or (None, None)
    return "exited" if ended is None else ended.cause.value
