"""What becomes of the `trace` of a request: a process that it starts can go on with it.

W3C Trace Context: the variables TRACEPARENT and TRACESTATE, as OpenTelemetry reads them.  Only with
`--pass-trace`, since the contract's server passes nothing on.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from execserver.handlers.context import Call
from execserver.protocol.envelope import Trace
from execserver.protocol.methods import PROCESS_START, Method

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_MAX_STATE = 512  # characters; longer ones need not be passed on
PARENT, STATE = "TRACEPARENT", "TRACESTATE"


def traced(call: Call, method: Method[Any, Any], params: Any, trace: Trace) -> Any:
    """Return the params of a request with its trace, and count a trace that is none."""
    variables = variables_of(trace)
    if variables is None:
        if call.services.observer is not None and trace.traceparent is not None:
            call.services.observer.bad_trace()
    elif method is PROCESS_START and call.services.passes_trace:
        return replace(params, env=variables | params.env)  # what the client sets itself counts
    return params


def variables_of(trace: Trace) -> dict[str, str] | None:
    """Return the variables of a trace, None if it is no trace.  A state that is not plain is left out."""
    if trace.traceparent is None or not _PARENT.fullmatch(trace.traceparent):
        return None
    state = trace.tracestate or ""
    plain = state.isascii() and state.isprintable() and 0 < len(state) <= _MAX_STATE
    return {PARENT: trace.traceparent, **({STATE: state} if plain else {})}
