"""Parses one response, by h11: refuses what is no HTTP/1.1, and does no I/O."""

from __future__ import annotations

import h11

from execserver.http_client.response_events import (
    HEAD_BYTES,
    BrokenResponse,
    Framing,
    ResponseEvent,
    ResponseHead,
)

_VERSIONS = (b"1.0", b"1.1")

# What h11 learns of every request.  It needs the method, because some responses have no body, and a request
# for an upgrade, because the reference accepts a 101 that was not asked for.
_ASSUMED_HEADERS = [(b"host", b"-"), (b"connection", b"upgrade"), (b"upgrade", b"-")]


class ResponseParser:
    """The response to a request of one method.  Whatever it finds wrong is a BrokenResponse."""

    __slots__ = ("_connection",)
    is_whole = False  # or not known to be

    def __init__(self, method: str) -> None:
        self._connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        self._connection.send(h11.Request(method=method, target=b"/", headers=_ASSUMED_HEADERS))
        self._connection.send(h11.EndOfMessage())

    @property
    def is_reusable(self) -> bool:
        """True if the connection may carry another request: both sides want it, and nothing is left over."""
        return self._connection.their_state is h11.DONE and not self._connection.trailing_data[0]

    def receive_data(self, data: bytes) -> None:
        """Take what has arrived, nothing at its end."""
        try:
            self._connection.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise BrokenResponse(str(error)) from None

    def next_event(self) -> ResponseEvent:
        """Return the next head, interim ones too, or piece of the body, or what else there is to say."""
        try:
            event = self._connection.next_event()
        except h11.RemoteProtocolError as error:
            raise BrokenResponse(str(error)) from None
        if isinstance(event, h11.Data):
            return event.data
        if event is h11.NEED_DATA:
            return Framing.NEED_DATA
        if not isinstance(event, h11.Response | h11.InformationalResponse):
            return Framing.ENDED
        if event.http_version not in _VERSIONS:
            raise BrokenResponse("the response is of another version of HTTP")
        return ResponseHead(event.status_code, list(event.headers))
