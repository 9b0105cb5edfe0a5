"""The params of a request -> the record of its method.

The fast path is one typed decode, by a decoder that every method keeps after its first use.  What it refuses
goes the slow path (`careful`), which accepts the rarer spellings and otherwise finds the text of the error
(wire contract, section 5).
"""

from __future__ import annotations

import functools

import msgspec

from execserver.protocol.errors import InvalidParams
from execserver.protocol.lifting import JsonText, Lifted
from execserver.protocol.method import Method, NotificationMethod, P, R
from execserver.protocol.record import REMEMBERED_CONTEXT_BYTES, Record, decode_value, known_context
from execserver.protocol.session import NoParams

_NO_PARAMS = NoParams()
_SANDBOX = "sandbox"
_SANDBOX_MEMBER = b'"sandbox"'
_NO_CONTEXT = _SANDBOX_MEMBER + b":null"
# What the library raises for bytes that are not the record, are not UTF-8, or are nested too deep.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_QUICK_BYTES = 64 * 1024  # above this, decoding everything else costs more than decoding the context


class _Decoders(dict[type[Record], msgspec.json.Decoder[Record | None]]):
    """The decoder of each record, made when it is first needed."""

    def __missing__(self, kind: type[Record]) -> msgspec.json.Decoder[Record | None]:
        wanted = NoParams | None if kind is NoParams else kind
        made = self[kind] = msgspec.json.Decoder(wanted, dec_hook=decode_value)
        return made


_decoders = _Decoders()


@functools.cache
def _twin_decoder(kind: type[Record]) -> msgspec.json.Decoder[msgspec.Struct] | None:
    """Return a decoder for the same members that leaves the sandbox context as JSON text.

    None for a record without a context.
    """
    members = msgspec.structs.fields(kind)
    if all(member.name != _SANDBOX for member in members):
        return None
    types = [(one.name, msgspec.Raw if one.name == _SANDBOX else one.type) for one in members]
    defaults = {
        one.name: msgspec.Raw() if one.name == _SANDBOX else one.default
        for one in members
        if not one.required and one.default is not msgspec.NODEFAULT
    }
    if len(defaults) < sum(not one.required for one in members):
        return None  # a default factory, which the twin cannot copy
    twin = msgspec.defstruct(
        f"{kind.__name__}Twin",
        [(name, type_, defaults[name]) if name in defaults else (name, type_) for name, type_ in types],
        kw_only=True,
        rename="camel",
    )
    return msgspec.json.Decoder(twin, dec_hook=decode_value)


def _decoded_but_for_sandbox(kind: type[Record], params: msgspec.Raw) -> Record | None:
    """Decode params with a context that was decoded before: clients repeat theirs in every request.

    Returns None for anything less simple, above all errors: then the fast path of all params decides.
    """
    if len(params) > _QUICK_BYTES:
        return None
    # `find`, since `in` takes twice as long to find out that it was not asked for a single byte.
    at = (text := bytes(params)).find(_SANDBOX_MEMBER)
    if at < 0 or text.startswith(_NO_CONTEXT, at):
        return None
    decoder = _twin_decoder(kind)
    if decoder is None:
        return None
    try:
        members = msgspec.structs.asdict(decoder.decode(text))
        context = bytes(members[_SANDBOX])
        if len(context) > REMEMBERED_CONTEXT_BYTES:
            return None
        members[_SANDBOX] = None if context in (b"", b"null") else known_context(context)
        return kind(**members)
    except (msgspec.DecodeError, RecursionError, InvalidParams, ValueError, TypeError):
        return None


def decode_params(method: Method[P, R] | NotificationMethod[P], params: JsonText) -> P:
    """Return the typed params of a call.  Raises InvalidParams."""
    kind = method.params
    if isinstance(params, Lifted):
        try:
            return params.decoded(_decoders[kind])  # type: ignore[return-value]
        except (*UNREADABLE, InvalidParams):
            params = msgspec.Raw(bytes(params))
    if _SANDBOX in kind.__struct_fields__:
        quickly = _decoded_but_for_sandbox(kind, params)
        if quickly is not None:
            return quickly  # type: ignore[return-value]
    try:
        decoded = _decoders[kind].decode(params)
    except (*UNREADABLE, InvalidParams):  # the latter from a value in it, which does not know where it is
        from execserver.protocol.slow_path import decode_on_slow_path

        return decode_on_slow_path(kind, params)
    return _NO_PARAMS if decoded is None else decoded  # type: ignore[return-value]
