"""Path URIs: the form of every path on the wire, and the native path of each.

`PathUri.parse` accepts what the wire contract accepts (section 11): `file:` URLs by the WHATWG rules and
native absolute paths, `~` included; anything else raises InvalidParams with the contract's text.  A URI may
mean a path of another kind of host; `native()` refuses that, `parse` does not.

Standard library only.  A URI of plain characters takes the fast path.  `url_hosts` checks hosts; it is
imported when the first one is met.
"""

from __future__ import annotations

import binascii
import os

from execserver.protocol.errors import InvalidParams, InvalidRequest
from execserver.protocol.percent import percent_decode

_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DIGITS = b"0123456789"
# Bytes that stand for themselves in URIs that the server makes, and also in native paths.
_PLAIN = _LETTERS + _DIGITS + b"!$&'()*+,-./:;=@[]^_|~"
# Bytes that a URL parser leaves as they are; a `%` may begin an escape or a broken one, both are kept.
_KEPT_BY_URL = _PLAIN + b"%"

# A table that keeps plain bytes only: to compare with is faster than to delete them.
_PLAIN_ALONE = bytes([byte if byte in _PLAIN else byte ^ 1 for byte in range(256)])
_NATIVE_TO_URI = [chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in range(256)]
_RAW_TO_URL = [chr(byte) if byte in _KEPT_BY_URL else f"%{byte:02X}" for byte in range(256)]

_SCHEME_CHARACTERS = frozenset((_LETTERS + _DIGITS + b"+-.").decode())
_STRIPPED = "".join(map(chr, range(0x21)))  # C0 controls and space, at both ends of a URL
_ONE_DOT = frozenset({".", "%2e"})
_TWO_DOTS = frozenset({"..", ".%2e", "%2e.", "%2e%2e"})

# The beginning of a URI for a native path with a NUL byte; base64url of the path follows.
_FALLBACK_PREFIX = "file:///%00/bad/path/"


class ForeignPath(InvalidRequest):
    """The URI is not a path of this kind of host: it has a host or a drive, or is a broken fallback form."""

    def __init__(self, uri: str) -> None:
        super().__init__(f"'{uri}' is invalid on 'linux'")


class PathUri:
    """One path on the wire, immutable; two are equal if their texts are."""

    __slots__ = ("_native", "_uri")

    def __init__(self, uri: str, native: bytes | None) -> None:
        """Take both forms unchecked; callers use `parse` or `from_native`."""
        self._uri = uri
        self._native = native  # None if `native` has to refuse

    @property
    def uri(self) -> str:
        """The normalised text."""
        return self._uri

    @staticmethod
    def parse(text: str) -> PathUri:
        """Return the path that a client named; raise InvalidParams with the contract's text."""
        if text.startswith("file:///"):
            path = text[7:]
        elif text.startswith("/"):
            path = text
        else:
            return _parse_any(text)
        try:
            raw = path.encode()
        except UnicodeEncodeError:
            return _parse_any(text)
        if _is_plain(path, raw):
            return PathUri("file://" + path, raw)
        return _parse_any(text)

    @staticmethod
    def from_native(path: bytes) -> PathUri:
        """Return the URI of an absolute native path found by the server."""
        return PathUri("file://" + encode_segment(path), path)

    def native(self) -> bytes:
        """Return the path as bytes for the operating system; raise ForeignPath or InvalidRequest (NUL)."""
        if self._native is None:
            raise _refusal(self._uri)
        return self._native

    def __eq__(self, other: object) -> bool:
        return self._uri == other._uri if isinstance(other, PathUri) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._uri)

    def __repr__(self) -> str:
        return f"PathUri({self._uri!r})"


# The longest path has 12 KiB as a URI; reading millions of escapes and dots would hold up other clients.
_MAX_URI = 64 * 1024


def display(path: bytes) -> str:
    """Return a native path for an error text; bytes that are not UTF-8 become U+FFFD."""
    return path.decode("utf-8", "replace")


def encode_segment(name: bytes) -> str:
    """Return a file name, or a native path, in the form of URIs that the server makes."""
    if name.translate(_PLAIN_ALONE) == name:
        return name.decode()
    return "".join([_NATIVE_TO_URI[byte] for byte in name])


def _is_plain(path: str, raw: bytes) -> bool:
    """Return whether an absolute path is its own normalised form, both as URI and as native path."""
    if raw.translate(_PLAIN_ALONE) != raw or "//" in path or path[2:3] in _DRIVE_MARKS:
        return False
    if path[-1] == "/":
        return path == "/"
    return "/." not in path or not ("/./" in path or "/../" in path or path.endswith(("/.", "/..")))


# A set and not a string: an empty slice (from a path of one or two characters) is in every string.
_DRIVE_MARKS = frozenset(":|")


def _parse_any(text: str) -> PathUri:
    """Parse by all rules: as a URL, or as a native path if it is no URL."""
    if len(text) > _MAX_URI:
        raise InvalidParams(f"path is longer than {_MAX_URI} characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidParams("path is not valid Unicode") from None
    cleaned = _clean(text)
    scheme, rest = _split_scheme(cleaned)
    if scheme == "file":
        return _parse_file_url(rest)
    if scheme:
        from execserver.protocol.url_hosts import check_other_url

        check_other_url(scheme, rest)
        raise InvalidParams(f"unsupported path URI scheme `{scheme}`")
    return _parse_native(text)


def _clean(text: str) -> str:
    """Remove what a URL parser ignores: outer controls and spaces, tabs and line ends anywhere."""
    text = text.strip(_STRIPPED)
    for character in "\t\n\r":
        if character in text:
            text = text.replace(character, "")
    return text


def _split_scheme(text: str) -> tuple[str, str]:
    """Return the scheme in lower case, empty if the text is no absolute URL, and the rest."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme[:1].isalpha() and _SCHEME_CHARACTERS.issuperset(scheme):
        return scheme.lower(), rest
    return "", text


# --- native paths ----------------------------------------------------------------------------------------


def _parse_native(text: str) -> PathUri:
    path = text.encode()
    if text == "~" or text.startswith("~/"):
        path = _home() + path[1:]
    if not path.startswith(b"/"):
        raise InvalidParams(f"path is not absolute: {text}")
    path = _normalise(path)
    if b"\0" in path:
        return PathUri(_FALLBACK_PREFIX + _base64url(path), None)
    uri = PathUri.from_native(path)
    return PathUri(uri.uri, None) if _is_drive(uri.uri[8:].partition("/")[0]) else uri


def _home() -> bytes:
    """Return the server's home directory; empty if there is none."""
    home = os.environb.get(b"HOME")
    if not home:
        import pwd

        try:
            home = os.fsencode(pwd.getpwuid(os.getuid()).pw_dir)
        except KeyError:
            home = b""
    return home


def _normalise(path: bytes) -> bytes:
    """Resolve `.`, `..` and empty segments of an absolute path by its text alone, without the file system."""
    segments: list[bytes] = []
    for segment in path.split(b"/"):
        if segment == b"..":
            if segments:
                segments.pop()
        elif segment not in (b"", b"."):
            segments.append(segment)
    return b"/" + b"/".join(segments)


# --- file: URLs ------------------------------------------------------------------------------------------


def _parse_file_url(rest: str) -> PathUri:
    """Parse the text behind `file:`, already cleaned."""
    rest, has_query, has_fragment = _cut_query(rest)
    rest = rest.replace("\\", "/")
    authority, path = _split_authority(rest)
    host = ""
    if authority and authority.lower() != "localhost":
        from execserver.protocol.url_hosts import parse_file_host

        host = parse_file_host(authority)
    segments, drive_found = _resolve_segments(path, rest.startswith("///"))
    if drive_found:
        host = ""
    path = "/" + "/".join(segments).lstrip("/")
    if has_query:
        raise InvalidParams("query parameters are not allowed in path URIs")
    if has_fragment:
        raise InvalidParams("fragments are not allowed in path URIs")
    return _finish(host, "".join([_RAW_TO_URL[byte] for byte in path.encode()]))


def _cut_query(text: str) -> tuple[str, bool, bool]:
    """Return the text before a query or fragment, and which of the two it has."""
    before_fragment, fragment, _ = text.partition("#")
    path, query, _ = before_fragment.partition("?")
    return path, bool(query), bool(fragment)


def _split_authority(rest: str) -> tuple[str, str]:
    """Return host and path of the text behind `file:`; a drive in place of the host belongs to the path."""
    if not rest.startswith("//"):
        return "", rest
    authority, slash, path = rest[2:].partition("/")
    if _is_drive_like(authority):
        return "", rest[2:]
    return authority, slash + path


def _resolve_segments(path: str, after_empty_host: bool) -> tuple[list[str], bool]:
    """Return the segments with dots resolved, and whether the first is a drive (which drops the host).

    `..` never removes a drive.  The reference server counts the slash behind an empty host as an empty
    segment, so there `C|` is not the first one and is not rewritten as `C:`.
    """
    segments: list[str] = []
    drive_found = False
    given = (path if after_empty_host else path.removeprefix("/")).split("/")
    for index, segment in enumerate(given):
        lowered = segment.lower()
        if lowered in _TWO_DOTS or lowered in _ONE_DOT:
            if lowered in _TWO_DOTS and segments and not _is_drive_like(segments[-1]):
                segments.pop()
            if index == len(given) - 1:
                segments.append("")
            continue
        if not segments and _is_drive_like(segment):
            segment = segment[0] + ":"
            drive_found = True
        segments.append(segment)
    return segments, drive_found


def _is_drive(segment: str) -> bool:
    return len(segment) == 2 and segment[1] == ":" and segment[0].isascii() and segment[0].isalpha()


def _is_drive_like(segment: str) -> bool:
    return len(segment) == 2 and segment[1] in _DRIVE_MARKS and _is_drive(segment[0] + ":")


def _finish(host: str, path: str) -> PathUri:
    """Make the PathUri of a normalised host and path, or refuse a NUL that is not the fallback form."""
    uri = f"file://{host}{path}"
    raw = percent_decode(path)
    if b"\0" in raw:
        if _fallback_bytes(uri) is None:
            raise InvalidParams(f"'{uri}' is invalid on 'linux'")
        return PathUri(uri, None)
    if host or _is_drive(path[1:].partition("/")[0]):
        return PathUri(uri, None)
    return PathUri(uri, _normalise(raw))


# --- the fallback form -----------------------------------------------------------------------------------


def _base64url(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode().rstrip("=").translate(_TO_URL_ALPHABET)


_TO_URL_ALPHABET = {ord("+"): "-", ord("/"): "_"}
_FROM_URL_ALPHABET = {ord("-"): "+", ord("_"): "/", ord("+"): "*", ord("/"): "*"}


def _fallback_bytes(uri: str) -> bytes | None:
    """Return the path bytes of a fallback URI, or None if the text is not one in canonical form."""
    encoded = uri.removeprefix(_FALLBACK_PREFIX)
    if not encoded or encoded == uri or not encoded.isascii():
        return None
    padded = encoded.translate(_FROM_URL_ALPHABET) + "=" * (-len(encoded) % 4)
    try:
        data = binascii.a2b_base64(padded, strict_mode=True)
    except binascii.Error:
        return None
    return data if _base64url(data) == encoded else None


def _refusal(uri: str) -> InvalidRequest:
    """Return the error for a URI without a native path: it is foreign, or its path has a NUL byte."""
    data = _fallback_bytes(uri)
    if data is not None and b"\0" in data and data.startswith(b"/") and _normalise(data) == data:
        return InvalidRequest("file name contained an unexpected NUL byte")
    return ForeignPath(uri)
