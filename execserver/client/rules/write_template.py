"""The requests that write a short piece to one process: constants, two numbers and base64 text.  Pure.

A key is a request of its own, and an encoder would look through two records for each.  A test compares every
text with the one of its record.
"""

from __future__ import annotations

from binascii import b2a_base64
from typing import Final

import msgspec

from execserver.protocol.process_methods import PROCESS_WRITE

METHOD: Final = PROCESS_WRITE.name
_text = msgspec.json.encode


class WriteTemplate:
    """What is the same in all writes of one client to one process; their ids are `prefix` and a number."""

    __slots__ = ("_begin", "_end")

    def __init__(self, process_id: str, prefix: str) -> None:
        self._begin = b',"method":%b,"params":{"processId":%b,"chunk":"' % (_text(METHOD), _text(process_id))
        self._end = b'","writeId":%b' % _text(prefix)[:-1]

    def request(self, call_id: int, number: int, data: bytes) -> bytes:
        """Return the request; `number` is that of the write."""
        encoded = b2a_base64(data, newline=False)
        return b'{"id":%d%b%b%b%d"}}' % (call_id, self._begin, encoded, self._end, number)
