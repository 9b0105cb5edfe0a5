"""The slow path for params that the fast decoder refused.

Follows the rules of the reference server's decoder (wire contract, section 5): members are checked in the
order they came, then the first missing one in declaration order; structs may be arrays of their members,
enums may be `{"name":null}`.  The result is the text of the first error, or the params in their plain
spelling, decoded after all.  The types of the records say what is accepted; there is no second description.
"""

from __future__ import annotations

import enum
import functools
import re
import types
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from execserver.protocol import base64, uuid_text
from execserver.protocol.error_texts import missing_field, refuse, unknown_field, variant_name, wrong_type
from execserver.protocol.errors import InvalidParams
from execserver.protocol.paths import PathUri
from execserver.protocol.record import U64_MAX, Base64, Record, UuidText, decode_value
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.protocol.session import NoParams

RecordType = TypeVar("RecordType", bound=Record)
Fields = tuple[msgspec.structs.FieldInfo, ...]
_fields = functools.cache(msgspec.structs.fields)  # each call takes 0.1 ms and leaves a reference cycle

# Nullable members that may still be missing at the end of an array.
_OPTIONAL_AT_END = frozenset(
    {"environmentId", "executionId", "policyDecisionTimeoutMs", "resumeSessionId", "sandbox"}
    | {"header", "prefix", "url_prefix_from_env"}
)

# Members of later contracts, which have no position in an array: the older contract counts without them.
_BY_NAME_ONLY = frozenset(
    {"atomic", "followSymlinks", "ifUnchangedSince", "mode", "mustNotExist"}
    | {"keepMs", "limits", "managedNetwork", "metadata", "networkProxy", "processName", "record"}
    | {"resumeSessionName", "sessionName", "shellSnapshot"}
)


def decode_on_slow_path(kind: type[RecordType], params: msgspec.Raw) -> RecordType:
    """Return the record by the slow path, or raise InvalidParams with the reason."""
    try:
        value = msgspec.json.decode(params)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidParams(f"params are not valid JSON: {error}") from None
    if kind is NoParams:
        raise wrong_type(value, "unit")
    plain = _struct(value, kind, "")
    try:
        return msgspec.convert(plain, kind, dec_hook=decode_value)
    except msgspec.ValidationError as error:
        raise InvalidParams(str(error)) from None


def _check(value: Any, wanted: Any, where: str) -> object:
    """Return the plain spelling of a value for a type, or raise InvalidParams."""
    for known, look in _LOOKS.items():
        if wanted is known:
            return look(value, where)
    origin = get_origin(wanted)
    if origin in (types.UnionType, Union):
        inner = next(part for part in get_args(wanted) if part not in (types.NoneType, msgspec.UnsetType))
        return None if value is None else _check(value, inner, where)
    if origin is Annotated:
        bound = wanted.__metadata__[0]
        return _uuid(value, bound, where) if wanted is UuidText else _number(value, bound, where)
    if origin is tuple:
        return _sequence(value, get_args(wanted)[0], where)
    if origin is dict:
        return _map(value, get_args(wanted)[1], where)
    if issubclass(wanted, enum.Enum):
        return _variant(value, wanted, where)
    return _struct(value, wanted, where)


def _struct(value: Any, kind: type[Record], where: str) -> dict[str, object]:
    fields = _fields(kind)
    if not isinstance(value, (dict, list)):
        raise wrong_type(value, f"struct {kind.__name__}", where)
    if isinstance(value, list):
        fields = tuple(field for field in fields if field.encode_name not in _BY_NAME_ONLY)
        plain = _members(zip((field.encode_name for field in fields), value, strict=False), fields, where)
        _check_length(len(value), fields, kind, where)
        return plain
    plain = _members(value.items(), fields, where, strict=kind.__struct_config__.forbid_unknown_fields)
    for field in fields:
        if field.required and field.encode_name not in plain:
            raise missing_field(field.encode_name)
    return plain


def _members(
    pairs: Iterable[tuple[str, Any]], fields: Fields, where: str, *, strict: bool = False
) -> dict[str, object]:
    """Check the members a struct knows, in the order they came; `strict` refuses all others."""
    known = {field.encode_name: field.type for field in fields}
    prefix = f"{where}." if where else ""
    plain: dict[str, object] = {}
    for name, member in pairs:
        if name in known:
            plain[name] = _check(member, known[name], prefix + name)
        elif strict:
            raise unknown_field(name, tuple(known), where)
    return plain


def _check_length(length: int, fields: Fields, kind: type[Record], where: str) -> None:
    """Refuse a positional array with too few or too many values."""
    needed = len(fields)
    while needed and _may_end_before(fields[needed - 1]):
        needed -= 1
    if length < needed:
        elements = "1 element" if len(fields) == 1 else f"{len(fields)} elements"
        raise refuse(f"invalid length {length}, expected struct {kind.__name__} with {elements}", where)
    if length > len(fields):
        raise refuse(f"invalid length {length}, expected fewer elements in array", where)


def _may_end_before(field: msgspec.structs.FieldInfo) -> bool:
    return not field.required and (field.default is not None or field.encode_name in _OPTIONAL_AT_END)


def _sequence(value: Any, item: Any, where: str) -> list[object]:
    if not isinstance(value, list):
        raise wrong_type(value, "a sequence", where)
    return [_check(member, item, f"{where}[{index}]") for index, member in enumerate(value)]


def _map(value: Any, item: Any, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise wrong_type(value, "a map", where)
    return {name: _check(member, item, f"{where}.{name}") for name, member in value.items()}


def _number(value: Any, meta: msgspec.Meta, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(value, str(meta.title), where)
    low, high = meta.ge or 0, U64_MAX if meta.le is None else meta.le
    if isinstance(value, float) or not low <= value <= high:
        raise refuse("invalid number", where)
    return value


def _uuid(value: Any, meta: msgspec.Meta, where: str) -> str:
    text = _text(value, where)
    if not re.search(str(meta.pattern), text):
        raise refuse(uuid_text.error_text(text), where)
    return text


def _variant(value: Any, kind: type[enum.Enum], where: str) -> str:
    names = tuple(member.value for member in kind)
    if isinstance(value, str) and value not in names:
        try:
            value = kind(value).value  # another spelling of a name, as the enum allows
        except ValueError:
            pass
    return variant_name(value, names, where)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(value, "a string", where)
    return value


def _boolean(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(value, "a boolean", where)
    return value


def _path(value: Any, where: str) -> str:
    text = _text(value, where)
    PathUri.parse(text)  # its errors have texts of their own
    return text


def _base64(value: Any, where: str) -> str:
    text = _text(value, where)
    try:
        base64.decode(text)
    except base64.InvalidBase64 as error:
        raise refuse(str(error), where) from None
    return text


def _context(value: Any, where: str) -> object:
    FileSystemSandboxContext.from_json(value, where)
    return value


_LOOKS: dict[object, Callable[[Any, str], object]] = {
    str: _text,
    bool: _boolean,
    PathUri: _path,
    Base64: _base64,
    FileSystemSandboxContext: _context,
}
