"""The params of a request -> the record of its method.

The usual way is one typed decode by a decoder that every method keeps after its first use.  What it refuses
gets a second, careful look (`careful`), which accepts the rarer spellings and otherwise finds the text of the
error (wire contract, section 5).  A result is decoded the same way, for the client side.
"""

from __future__ import annotations

import functools

import msgspec

from execserver.protocol.errors import InternalError, InvalidParams
from execserver.protocol.method import Method, NotificationMethod, P, R
from execserver.protocol.record import Record, decode_value
from execserver.protocol.session import NoParams

_NO_PARAMS = NoParams()


@functools.cache
def _decoder(kind: type[Record]) -> msgspec.json.Decoder[Record | None]:
    wanted = NoParams | None if kind is NoParams else kind
    return msgspec.json.Decoder(wanted, dec_hook=decode_value)


def decode_params(method: Method[P, R] | NotificationMethod[P], params: msgspec.Raw) -> P:
    """Return the typed params of a call.  Raises InvalidParams."""
    kind = method.params
    try:
        decoded = _decoder(kind).decode(params)
    except (msgspec.DecodeError, RecursionError):
        from execserver.protocol.careful import decode_carefully

        return decode_carefully(kind, params)
    return _NO_PARAMS if decoded is None else decoded  # type: ignore[return-value]


def decode_result(method: Method[P, R], result: msgspec.Raw) -> R:
    """Return the typed result a server sent.  Raises InternalError when it is another kind."""
    try:
        return _decoder(method.result).decode(result)  # type: ignore[return-value]
    except (msgspec.DecodeError, RecursionError, InvalidParams) as error:
        raise InternalError(f"the result of {method.name} is not understood: {error}") from None
