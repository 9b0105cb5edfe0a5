"""Reads the `process/output` messages of one connection.  No I/O.

Nearly all output follows on other output of the same stream, so that all of a message but the chunk is known
before it comes: comparing takes a fifth of the time of looking for the members.  What is not as expected goes
the way of all output, `wire.decode_output`; a test compares the two.
"""

from __future__ import annotations

from typing import Final

import msgspec

from execserver.client.rules import wire
from execserver.client.rules.event_log import Output
from execserver.protocol import base64

_UNKNOWN: Final = b"\0"  # no message begins so
_MOST_SEQ: Final = 10**18  # what is above is for `wire` to judge
_text = msgspec.json.encode


class OutputReader:
    """What the next output probably begins with, after `expect_next`."""

    __slots__ = ("_before", "_behind", "_head", "_process_id", "_seq", "_stream")

    def __init__(self) -> None:
        self._process_id = self._stream = ""
        self._before = self._behind = b""  # what is around `seq`
        self._seq = 0
        self._head = _UNKNOWN

    def read(self, message: bytes) -> tuple[str, Output] | None:
        """Return process id and event of a `process/output`, None for anything else."""
        begin = len(self._head)
        if not (message.startswith(self._head) and message.endswith(wire.BEHIND_CHUNK, begin)):
            return wire.decode_output(message)
        try:
            if len(message) - begin < base64.LITTLE_BYTES:
                chunk = base64.decode_little(message[begin : -len(wire.BEHIND_CHUNK)])
            else:
                chunk = base64.decode_buffer(memoryview(message)[begin : -len(wire.BEHIND_CHUNK)])
        except ValueError:
            return wire.decode_output(message)
        return self._process_id, Output(self._seq, self._stream, chunk)

    def expect_next(self, process_id: str, output: Output) -> None:
        """Expect the output that follows on this one."""
        if process_id != self._process_id or output.stream != self._stream:
            self._process_id, self._stream = process_id, output.stream
            self._before = b'%b"processId":%b,"seq":' % (wire.OUTPUT_START, _text(process_id))
            self._behind = b',"stream":%b,"chunk":"' % _text(output.stream)
        self._seq = output.seq + 1
        self._head = (
            b"%b%d%b" % (self._before, self._seq, self._behind) if output.seq < _MOST_SEQ else _UNKNOWN
        )
