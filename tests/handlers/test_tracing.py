"""The trace of a request: what is a trace, and who gets it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from execserver.handlers.context import Call
from execserver.handlers.tracing import traced, variables_of
from execserver.protocol.envelope import Trace
from execserver.protocol.methods import FS_READ_FILE, PROCESS_START
from execserver.protocol.paths import PathUri
from execserver.protocol.process import ExecParams

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "text",
    [
        "",
        PARENT.upper(),
        PARENT[:-1],
        PARENT + "-x",
        PARENT + "\n",
        "ff" + PARENT[2:],
        "00-" + "0" * 32 + PARENT[35:],
        PARENT[:36] + "0" * 16 + "-01",
    ],
)
def test_what_is_no_trace_is_counted_and_passed_on_to_nobody(text: str) -> None:
    told: list[str] = []
    call = made_call(told)
    params = start_params("p")
    assert traced(call, PROCESS_START, params, Trace(text)) is params
    assert told == ["bad"]


def start_params(process_id: str, env: dict[str, str] | None = None) -> ExecParams:
    cwd = PathUri.parse("file:///")
    return ExecParams(process_id=process_id, argv=("x",), cwd=cwd, env=env or {}, tty=False)


def made_call(told: list[str], passes: bool = True) -> Call:
    observer = SimpleNamespace(bad_trace=lambda: told.append("bad"))
    return cast(Call, SimpleNamespace(services=SimpleNamespace(observer=observer, passes_trace=passes)))


def env_of(params: Any) -> dict[str, str]:
    assert isinstance(params, ExecParams)
    return params.env


def test_a_start_gets_the_trace_unless_its_client_sets_one() -> None:
    told: list[str] = []
    trace = Trace(PARENT, "vendor=1")
    params = start_params("p", env={"A": "1"})
    assert env_of(traced(made_call(told), PROCESS_START, params, trace)) == {
        "A": "1",
        "TRACEPARENT": PARENT,
        "TRACESTATE": "vendor=1",
    }
    own = start_params("p", env={"TRACEPARENT": "mine"})
    assert env_of(traced(made_call(told), PROCESS_START, own, Trace(PARENT))) == {"TRACEPARENT": "mine"}
    assert traced(made_call(told, passes=False), PROCESS_START, params, trace) is params
    assert traced(made_call(told), FS_READ_FILE, "params", trace) == "params"
    assert told == []


@pytest.mark.parametrize("state", ["", "é", "a\x1b[m", "x" * 513])
def test_a_state_that_is_not_plain_is_left_out(state: str) -> None:
    assert variables_of(Trace(PARENT, state)) == {"TRACEPARENT": PARENT}
