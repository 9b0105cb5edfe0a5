"""Random values of every record, made from the types of its members."""

from __future__ import annotations

import enum
import types
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from hypothesis import settings
from hypothesis import strategies as st

from execserver.protocol.paths import PathUri
from execserver.protocol.permissions import PermissionProfile
from execserver.protocol.record import U64_MAX, Base64, Record, UuidText
from execserver.protocol.sandbox import WINDOWS_SANDBOX_LEVELS, FileSystemSandboxContext

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text("abz09._- é", min_size=1, max_size=8)
paths = st.lists(names.map(lambda name: name.strip(". ") or "x"), max_size=4).map(
    lambda parts: PathUri.parse("/" + "/".join(parts))
)

_places = st.one_of(
    paths.map(lambda path: {"type": "path", "path": path.uri}),
    texts.map(lambda pattern: {"type": "glob_pattern", "pattern": pattern}),
    st.sampled_from(["root", "minimal", "tmpdir", "slash_tmp"]).map(
        lambda kind: {"type": "special", "value": {"kind": kind}}
    ),
    st.builds(
        lambda subpath: {"type": "special", "value": {"kind": "project_roots", "subpath": subpath}},
        st.none() | texts,
    ),
    texts.map(lambda path: {"type": "special", "value": {"kind": "unknown", "path": path}}),
)
_entries = st.builds(
    lambda path, access: {"path": path, "access": access},
    _places,
    st.sampled_from(["read", "write", "deny", "none"]),
)
_networks = st.sampled_from(["restricted", "enabled"])
_files = st.one_of(
    st.just({"type": "unrestricted"}),
    st.builds(
        lambda entries, depth: {"type": "restricted", "entries": entries, "glob_scan_max_depth": depth},
        st.lists(_entries, max_size=4),
        st.none() | st.integers(1, 9),
    ),
)
profiles = st.one_of(
    st.just({"type": "disabled"}),
    _networks.map(lambda network: {"type": "external", "network": network}),
    st.builds(
        lambda files, network: {"type": "managed", "file_system": files, "network": network},
        _files,
        _networks,
    ),
).map(PermissionProfile.from_json)
contexts = st.builds(
    FileSystemSandboxContext,
    profiles,
    st.none() | paths,
    st.lists(paths, max_size=2).map(tuple),
    st.sampled_from(WINDOWS_SANDBOX_LEVELS),
    st.booleans(),
    st.booleans(),
)

_PLAIN: dict[object, st.SearchStrategy[Any]] = {
    str: texts,
    UuidText: st.uuids().map(str),
    bool: st.booleans(),
    int: st.integers(-(2**53), 2**53),
    PathUri: paths,
    Base64: st.binary(max_size=40),
    FileSystemSandboxContext: contexts,
}


def one_in(part: int) -> int:
    """Return a part of the usual number of examples, for tests that are played for every record."""
    usual = settings.default
    return (usual.max_examples if usual else 100) // part


def records(kind: type[Record]) -> st.SearchStrategy[Record]:
    """Return a strategy for a record; members with a default are sometimes left out."""
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for member in msgspec.structs.fields(kind):
        (required if member.required else optional)[member.name] = values(member.type)
    return st.fixed_dictionaries(required, optional=optional).map(lambda members: kind(**members))


def values(wanted: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for one type that records use."""
    if wanted in _PLAIN:
        return _PLAIN[wanted]
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (types.UnionType, Union):
        parts = [part for part in arguments if part not in (types.NoneType, msgspec.UnsetType)]
        inner = values(parts[0])
        return st.none() | inner if types.NoneType in arguments else inner
    if origin is Annotated:
        meta = wanted.__metadata__[0]
        return st.integers(meta.ge or 0, U64_MAX if meta.le is None else meta.le)
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(texts, values(arguments[1]), max_size=3)
    if issubclass(wanted, enum.Enum):
        return st.sampled_from(wanted)
    return records(wanted)
