"""Writes docs/protocol.md: the prose of `protocol_page.md` with the tables of the method table put in.

`python -m tools.protocol_page` writes the page; a test fails when it is not up to date.  Lines of the prose
that begin with `@` are replaced: `@method NAME`, `@notification NAME`, `@question NAME` (a
request of the server), `@record NAME`, `@index`.
"""

from __future__ import annotations

import enum
import inspect
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

import execserver.protocol as protocol
from execserver.protocol.methods import METHODS, NOTIFICATIONS, SERVER_REQUESTS
from execserver.protocol.paths import PathUri
from execserver.protocol.record import Base64, Record
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.protocol.session import NoParams

PROSE = Path(__file__).with_suffix(".md")
PAGE = Path(__file__).resolve().parent.parent / "docs" / "protocol.md"
_WIDTH = 120  # of a line of the page

_NAMES: dict[object, str] = {
    str: "string",
    bool: "bool",
    int: "integer",
    PathUri: "path",
    Base64: "base64",
    FileSystemSandboxContext: "sandbox context (8.7)",
}


def render(prose: str) -> str:
    """Return the page for a prose text.  Raises KeyError for a name that does not exist."""
    lines: list[str] = []
    for line in prose.splitlines():
        lines.extend(_replaced(line) if line.startswith("@") else [line])
    return "\n".join(lines) + "\n"


def _replaced(line: str) -> Iterator[str]:
    kind, _, name = line[1:].partition(" ")
    writers = {"method": _method, "notification": _notification, "question": _question}
    return (writers | {"record": _record, "index": _index})[kind](name)


def _method(name: str) -> Iterator[str]:
    method = METHODS[name]
    yield f"#### `{name}`"
    yield ""
    yield from _paragraph(f"{method.doc} {_since(method.since)}")
    yield ""
    if method.params is NoParams:
        yield "Params: none, `null` or `{}`."
    else:
        yield from _table("Params", method.params, sent=True)
    yield ""
    yield from _table("Result", method.result, sent=False)


def _notification(name: str) -> Iterator[str]:
    notification = NOTIFICATIONS[name]
    sender = "client" if notification.to_server else "server"
    yield f"#### `{name}` (sent by the {sender})"
    yield ""
    yield from _paragraph(f"{notification.doc} {_since(notification.since)}")
    yield ""
    yield from _table("Params", notification.params, sent=notification.to_server)


def _question(name: str) -> Iterator[str]:
    request = SERVER_REQUESTS[name]
    yield f"#### `{name}` (asked by the server)"
    yield ""
    yield from _paragraph(f"{request.doc} {_since(request.since)}")
    yield ""
    yield from _table("Params", request.params, sent=False)
    yield ""
    yield from _table("Result", request.result, sent=True)


def _record(name: str) -> Iterator[str]:
    record = getattr(protocol, name)
    yield f"`{name}`: {_first_line(record)}"
    yield ""
    yield from _table("Members", record, sent=True)


def _index(_: str) -> Iterator[str]:
    yield "| method | family | since | |"
    yield "|---|---|---|---|"
    for method in METHODS.values():
        since = "own extension" if method.extension else method.since
        yield f"| `{method.name}` | {method.family.value} | {since} | {method.doc} |"


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _since(since: str) -> str:
    if since == "execserver":
        return "*Own extension, announced as a capability.*"
    return f"*Since {since}.*"


def _table(title: str, record: type[Record], sent: bool) -> Iterator[str]:
    """Yield a table of a record's members; defaults only matter where a client sends them."""
    fields = msgspec.structs.fields(record)
    if not fields:
        yield f"{title}: `{{}}`." if not sent else f"{title}: any, ignored."
        return
    if sent:
        yield f"| {title.lower()} | type | |"
        yield "|---|---|---|"
        for field in fields:
            yield f"| `{field.encode_name}` | {type_name(field.type)} | {_default(field)} |"
    else:
        yield f"| {title.lower()} | type |"
        yield "|---|---|"
        for field in fields:
            yield f"| `{field.encode_name}` | {type_name(field.type)} |"


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    if field.default in (None, msgspec.UNSET):
        return "may be missing or null" if _nullable(field.type) else "may be missing"
    if field.default is msgspec.NODEFAULT:
        return f"default `{msgspec.json.encode(field.default_factory()).decode()}`"
    default = field.default.value if isinstance(field.default, enum.Enum) else field.default
    return f"default `{msgspec.json.encode(default).decode()}`"


def _nullable(wanted: Any) -> bool:
    return types.NoneType in get_args(wanted)


def type_name(wanted: Any) -> str:
    """Return how the page writes a type."""
    if wanted in _NAMES:
        return _NAMES[wanted]
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (types.UnionType, Union):
        inner = [part for part in arguments if part not in (types.NoneType, msgspec.UnsetType)]
        return type_name(inner[0]) + (" or null" if types.NoneType in arguments else "")
    if origin is Annotated:
        return str(wanted.__metadata__[0].title)
    if origin is tuple:
        return f"[{type_name(arguments[0])}]"
    if origin is dict:
        return f"{{string: {type_name(arguments[1])}}}"
    if issubclass(wanted, enum.Enum):
        return ", ".join(f"`{member.value}`" for member in wanted)
    return f"{wanted.__name__}"


def _first_line(record: type) -> str:
    return (inspect.getdoc(record) or "").split("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(render(PROSE.read_text()))
