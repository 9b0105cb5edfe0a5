"""Paths of a box as texts for a page, and back: bytes that are no UTF-8 are lone surrogates.  Pure."""

from __future__ import annotations

from typing import Final

from execserver.box.web.failing import WRONG, CallFailed
from execserver.protocol.errors import RpcError
from execserver.protocol.paths import PathUri

_LONGEST: Final = 4096


def text_of(path: PathUri) -> str:
    """Return a path of a box as a text; its URI if it is no path of this kind of machine."""
    try:
        return path.native().decode("utf-8", "surrogateescape")
    except RpcError:
        return path.uri


def uri_of(text: str) -> PathUri:
    """Return the path that a page means.  Raises CallFailed."""
    try:
        native = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise CallFailed("a path has half of a character", WRONG) from None
    if not native.startswith(b"/") or b"\0" in native or len(native) > _LONGEST:
        raise CallFailed("a path is absolute, and has 4096 bytes at most", WRONG)
    return PathUri.from_native(native)


def is_name(name: str) -> bool:
    """Tell whether a box may call something in a folder so."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def beside(path: PathUri, name: bytes) -> PathUri:
    """Return a path in the same folder."""
    return PathUri.from_native(path.native().rpartition(b"/")[0] + b"/" + name)
