"""`http/request` (wire contract, section 13)."""

from __future__ import annotations

from execserver.handlers.context import Call
from execserver.handlers.registry import handles
from execserver.handlers.replies import Later, Reply
from execserver.protocol.http import HttpRequestParams
from execserver.protocol.methods import HTTP_REQUEST


@handles(HTTP_REQUEST)
def request(call: Call, params: HttpRequestParams) -> Later:
    """Check the request now, and make it in a greenlet of its own."""
    streams = call.connection.http_streams
    prepared = streams.prepare(params)

    def streamed() -> Reply:
        stream = streams.stream(prepared)
        return Reply(stream.result, stream.start)

    return Later(streamed if prepared.streamed else lambda: streams.buffered(prepared))
