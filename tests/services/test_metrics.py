"""The figures of a server, of a real one and of the counting itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from execserver.access.identity import NOBODY
from execserver.protocol.envelope import Request
from execserver.protocol.resource_limits import EndCause, ProcessEnd, ResourceUsage
from execserver.services.reporting.metrics import ServerMetrics
from execserver.services.reporting.observers import Answered, Started, Who
from execserver.services.running.process import Process

WHO = Who("session", NOBODY)


def answered(method: str, result: str, seconds: float) -> Answered:
    return Answered(Request(1, method), WHO, result, None, seconds)


def lines(metrics: ServerMetrics, name: str) -> list[str]:
    return [line for line in metrics.page().decode().splitlines() if line.startswith(name)]


def process(
    code: int,
    *,
    terminated: bool = False,
    denied: bool = False,
    refusal: str = "",
    cause: EndCause | None = None,
) -> Process:
    state = SimpleNamespace(
        exit_code=code,
        terminated=terminated,
        sandbox_denied=denied,
        sandbox_refusal=refusal,
        sandbox=object() if denied or refusal else None,
    )
    ended = None if cause is None else ProcessEnd(cause=cause, text="why")
    ending = (ended, ResourceUsage(cpu_ms=1, complete=True))
    return cast(Process, SimpleNamespace(state=state, started_at=0.0, ending=ending))


def test_methods_that_nobody_knows_have_one_name() -> None:
    metrics = ServerMetrics(dict)
    for number in range(100):
        metrics.answered(answered(f"x/{number}", "error", 0.001))
    metrics.answered(answered("initialize", "success", 0.3))
    assert lines(metrics, "exec_server_requests_total") == [
        'exec_server_requests_total{method="initialize",result="success"} 1',
        'exec_server_requests_total{method="unknown",result="error"} 100',
    ]
    assert (
        'exec_server_request_duration_seconds_bucket{method="initialize",result="success",le="0.25"} 0'
        in lines(metrics, "exec_server_request_duration_seconds_bucket")
    )


def test_processes_are_counted_by_how_they_ended() -> None:
    metrics = ServerMetrics(dict)
    ended = [
        *(process(0), process(3), process(137, terminated=True)),
        *(process(1, denied=True), process(101, refusal="no such folder")),
        *(process(137, cause=EndCause.LIMIT), process(143, cause=EndCause.SIGNAL)),
    ]
    for each in ended:
        started = Started(each, WHO, b"/", is_sandboxed=each.state.sandbox is not None)
        metrics.process_started(started)
    assert lines(metrics, "exec_server_processes_active") == ["exec_server_processes_active 7"]
    for each in ended:
        metrics.process_exited(each)
    assert lines(metrics, "exec_server_processes_active") == ["exec_server_processes_active 0"]
    assert lines(metrics, "exec_server_processes_finished_total") == [
        'exec_server_processes_finished_total{result="error",cause="exited"} 3',
        'exec_server_processes_finished_total{result="error",cause="limit"} 1',
        'exec_server_processes_finished_total{result="error",cause="signal"} 1',
        'exec_server_processes_finished_total{result="success",cause="exited"} 1',
        'exec_server_processes_finished_total{result="terminated",cause="terminated"} 1',
    ]
    assert lines(metrics, "execserver_sandbox_denials_total") == [
        'execserver_sandbox_denials_total{reason="denied"} 1',
        'execserver_sandbox_denials_total{reason="refused"} 1',
    ]
    assert lines(metrics, "execserver_starts_total") == [
        'execserver_starts_total{sandboxed="no"} 5',
        'execserver_starts_total{sandboxed="yes"} 2',
    ]


def test_connections_and_what_the_server_knows_by_itself() -> None:
    metrics = ServerMetrics(lambda: {"execserver_sessions": ("Sessions", 4.0)})
    metrics.connected()
    metrics.connected()
    metrics.disconnected()
    metrics.bad_trace()
    assert lines(metrics, "exec_server_connections") == [
        "exec_server_connections_active 1",
        "exec_server_connections_total 2",
    ]
    assert lines(metrics, "execserver_sessions") == ["execserver_sessions 4"]
    assert lines(metrics, "execserver_bad_traces_total") == ["execserver_bad_traces_total 1"]
