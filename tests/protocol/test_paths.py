"""Path URIs: recorded answers of the reference, every rule of section 11, and random texts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.protocol.errors import InvalidParams, InvalidRequest, RpcError
from execserver.protocol.paths import ForeignPath, PathUri, display, encode_segment
from tests.support.accounts import account_home

RECORDS = Path(__file__).parent.parent / "transcripts"
PERCENT = [
    json.loads(line)
    for line in (RECORDS / "12-percent-encoding.0.142.0.jsonl").read_text(encoding="utf-8").splitlines()
]
RECORDED = [(record["path"], record["reply"]) for record in PERCENT if "path" in record]


def note(beginning: str) -> str:
    notes = [str(record.get("note", "")) for record in PERCENT]
    return next(text for text in notes if text.startswith(beginning)).removeprefix(beginning)


def refusal(text: str) -> tuple[int, str]:
    """Return code and message of what using the path gives."""
    with pytest.raises(RpcError) as caught:
        PathUri.parse(text).native()
    return caught.value.code, caught.value.message


def recorded_paths() -> list[tuple[str, dict[str, object]]]:
    """Return path and reply of the recording's `paths` passage, as far as it names no place."""
    lines = (RECORDS / "06-fs.0.142.0.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    start = next(i for i, record in enumerate(records) if record.get("note") == "paths")
    asked = {}
    found = []
    for record in records[start + 1 :]:
        message = record.get("msg", {})
        if "method" in message:
            asked[message["id"]] = message["params"]["path"]
        elif "id" in message and "{" not in asked[message["id"]]:
            found.append((asked[message["id"]], message))
    return found


@pytest.mark.parametrize(("text", "reply"), RECORDED, ids=[text for text, _ in RECORDED])
def test_recorded_uris_are_refused_or_taken_as_recorded(text: str, reply: dict[str, object]) -> None:
    if reply.get("code") in (-32600, -32602):
        assert refusal(text) == (reply["code"], reply["message"])
    else:  # found, or looked for and not found
        assert PathUri.parse(text).native().startswith(b"/")


def test_recorded_paths_are_refused_or_taken_as_recorded() -> None:
    recorded = recorded_paths()
    assert len(recorded) > 40
    for text, reply in recorded:
        error = reply.get("error")
        if isinstance(error, dict) and error["code"] in (-32600, -32602):
            assert refusal(text) == (error["code"], error["message"]), text
        else:
            assert PathUri.parse(text).native().startswith(b"/"), text


def test_native_characters_are_kept_or_encoded_as_recorded() -> None:
    kept = note("result paths (native to URI): characters kept as they are: ")
    encoded = json.loads(note("result paths: characters encoded: "))
    for character in kept:
        assert encode_segment(character.encode()) == character
    for name, escape in encoded.items():
        character = chr(int(name.removeprefix("U+"), 16))
        assert PathUri.from_native(b"/a" + character.encode()).uri == f"file:///a{escape}"


def test_raw_characters_of_a_uri_are_kept_or_changed_as_recorded() -> None:
    kept = note("raw character inside a file: URI, as normalised: kept: ")
    changed = json.loads(note("raw character inside a file: URI, changed: "))
    for character in kept:
        assert PathUri.parse(f"file:///a{character}b").uri == f"file:///a{character}b"
    for name, text in changed.items():
        character = chr(int(name.removeprefix("U+"), 16))
        if character not in "?#":
            assert PathUri.parse(f"file:///a{character}b").uri == f"file:///a{text}b"


@pytest.mark.parametrize(
    ("text", "uri", "native"),
    [
        ("file:///tmp/a.txt", "file:///tmp/a.txt", b"/tmp/a.txt"),
        ("/tmp/a.txt", "file:///tmp/a.txt", b"/tmp/a.txt"),
        ("/", "file:///", b"/"),
        ("file:///", "file:///", b"/"),
        ("//", "file:///", b"/"),
        ("/a/../../b/./c//d/", "file:///b/c/d", b"/b/c/d"),
        ("/.git/config", "file:///.git/config", b"/.git/config"),
        ("/a/..b/c..", "file:///a/..b/c..", b"/a/..b/c.."),
        ("/sp ace/%41/ü#?.txt", "file:///sp%20ace/%2541/%C3%BC%23%3F.txt", "/sp ace/%41/ü#?.txt".encode()),
        ("/back\\slash", "file:///back%5Cslash", b"/back\\slash"),
        ("file:///a//b/", "file:///a//b/", b"/a/b"),
        ("file:////a", "file:///a", b"/a"),
        ("file:///a/..", "file:///", b"/"),
        ("file:///a%2F..%2Fb", "file:///a%2F..%2Fb", b"/b"),
        ("file:///bad%ff", "file:///bad%ff", b"/bad\xff"),
        ("file:///%zz%4", "file:///%zz%4", b"/%zz%4"),
        ("file:///a\\..\\b", "file:///b", b"/b"),
        ("FILE:x", "file:///x", b"/x"),
        (" \tfile:///t\nm\rp\t ", "file:///tmp", b"/tmp"),
        ("file://LocalHost/etc", "file:///etc", b"/etc"),
        ("file://%6Cocalhost/etc", "file:///etc", b"/etc"),
        ("file:///C|/x", "file:///C|/x", b"/C|/x"),
        ("file:///C%3A/x", "file:///C%3A/x", b"/C:/x"),
        ("file:///cc:/x", "file:///cc:/x", b"/cc:/x"),
        ("file:///a/C:/x", "file:///a/C:/x", b"/a/C:/x"),
        ("file:///x/c:/../y", "file:///x/c:/y", b"/x/c:/y"),
    ],
)
def test_accepted_paths_are_normalised(text: str, uri: str, native: bytes) -> None:
    path = PathUri.parse(text)
    assert (path.uri, path.native()) == (uri, native)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("rel", -32602, "path is not absolute: rel"),
        ("", -32602, "path is not absolute: "),
        ("~root/x", -32602, "path is not absolute: ~root/x"),
        ("  /tmp  ", -32602, "path is not absolute:   /tmp  "),
        ("http://h/x", -32602, "unsupported path URI scheme `http`"),
        ("C:\\x", -32602, "unsupported path URI scheme `c`"),
        ("http://", -32602, "invalid URI: empty host"),
        ("file://user@h/x", -32602, "invalid URI: invalid international domain name"),
        ("file:///x?", -32602, "query parameters are not allowed in path URIs"),
        ("file:///x?#", -32602, "query parameters are not allowed in path URIs"),
        ("file:///x#?", -32602, "fragments are not allowed in path URIs"),
        ("file:///a%00b c", -32602, "'file:///a%00b%20c' is invalid on 'linux'"),
        ("file://H/a b", -32600, "'file://h/a%20b' is invalid on 'linux'"),
        ("file:///c:/x", -32600, "'file:///c:/x' is invalid on 'linux'"),
        ("/c:/x", -32600, "'file:///c:/x' is invalid on 'linux'"),
        ("file:C|/x", -32600, "'file:///C:/x' is invalid on 'linux'"),
        ("file://h/C|/x", -32600, "'file:///C:/x' is invalid on 'linux'"),
        ("file:///..\\C|/", -32600, "'file:///C:/' is invalid on 'linux'"),
        ("/a\0b", -32600, "file name contained an unexpected NUL byte"),
        ("\ud800", -32602, "path is not valid Unicode"),
        ("/\ud800", -32602, "path is not valid Unicode"),
        ("file:///\udfff", -32602, "path is not valid Unicode"),
    ],
)
def test_refused_paths_have_the_code_and_text_of_the_contract(text: str, code: int, message: str) -> None:
    assert refusal(text) == (code, message)


def test_a_text_longer_than_any_path_is_refused_before_it_is_read() -> None:
    assert PathUri.parse("file:///" + "%41" * 4095).native() == b"/" + b"A" * 4095
    for text in ("file:///" + "%41" * 30_000, "file:///" + "a/../" * 20_000, "file://" + "/" * 65_536):
        with pytest.raises(InvalidParams, match="path is longer than 65536 characters"):
            PathUri.parse(text)


def test_the_home_of_the_server_stands_for_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ü")
    assert PathUri.parse("~").native() == "/home/ü".encode()
    assert PathUri.parse("~/../x//y").native() == b"/home/x/y"
    monkeypatch.setenv("HOME", "not/absolute")
    assert refusal("~/x") == (-32602, "path is not absolute: ~/x")
    monkeypatch.setenv("HOME", "")
    if account_home() is None:
        assert refusal("~") == (-32602, "path is not absolute: ~")
    else:
        assert PathUri.parse("~").native().startswith(b"/")


def test_the_fallback_form_stands_for_a_path_with_nul() -> None:
    path = PathUri.parse("/tmp/\0")
    assert path.uri == "file:///%00/bad/path/L3RtcC8A"
    assert PathUri.parse(path.uri) == path
    assert refusal(path.uri) == (-32600, "file name contained an unexpected NUL byte")


@pytest.mark.parametrize("encoded", ["L3RtcA", "AAAA", "Ly8A", "Ly4vAA", "L3RtcAAv", "QwA6AFwAeAA"])
def test_a_fallback_for_another_path_is_foreign(encoded: str) -> None:
    uri = f"file:///%00/bad/path/{encoded}"
    with pytest.raises(ForeignPath):
        PathUri.parse(uri).native()


@pytest.mark.parametrize("encoded", ["", "x", "LwB", "L3RtcC8A=", "LwA/", "L%77A", "Lw+A", "é"])
def test_a_fallback_that_is_not_canonical_base64_is_refused(encoded: str) -> None:
    with pytest.raises(InvalidParams, match="is invalid on 'linux'"):
        PathUri.parse(f"file:///%00/bad/path/{encoded}")


def test_paths_are_immutable_and_equal_by_text() -> None:
    path = PathUri.parse("/a")
    assert path == PathUri.parse("file:///a")
    assert path != PathUri.parse("/b")
    assert path != "file:///a"
    assert len({path, PathUri.from_native(b"/a")}) == 1
    assert repr(path) == "PathUri('file:///a')"
    with pytest.raises(AttributeError):
        path.uri = "file:///b"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del path.uri
    with pytest.raises(AttributeError):
        path.other = 1  # type: ignore[attr-defined]


def test_bytes_that_are_no_utf8_are_shown_as_replacement_characters() -> None:
    assert display(b"/b\xff\xfe\xe2\x82d") == "/b\ufffd\ufffd\ufffdd"


names = st.binary(min_size=1, max_size=12).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
native_paths = st.lists(names, max_size=5).map(lambda parts: b"/" + b"/".join(parts))


def begins_with_a_drive(path: bytes) -> bool:
    first = path[1:].partition(b"/")[0]
    return len(first) == 2 and first[1:] == b":" and first[:1].isalpha()


@given(native_paths)
def test_every_native_path_survives_its_uri(path: bytes) -> None:
    uri = PathUri.from_native(path).uri
    assert uri.isascii()
    if begins_with_a_drive(path):
        assert refusal(uri) == (-32600, f"'{uri}' is invalid on 'linux'")
    else:
        assert PathUri.parse(uri).native() == path


@given(native_paths)
def test_a_native_text_and_its_uri_are_the_same_path(path: bytes) -> None:
    text = path.decode("utf-8", "replace")
    assert PathUri.parse(text) == PathUri.from_native(text.encode())


PIECES = [
    "file:",
    "//",
    "/",
    "\\",
    "..",
    "%2e",
    "C:",
    "c|",
    "a",
    "%00",
    " ",
    "\t",
    "%",
    "?",
    "#",
    "é",
    "h",
    "[::1]",
    "@",
]


@given(st.one_of(st.text(max_size=30), st.lists(st.sampled_from(PIECES), max_size=9).map("".join)))
def test_any_text_gives_a_normal_path_or_a_typed_error(text: str) -> None:
    try:
        path = PathUri.parse(text)
    except InvalidParams:
        return
    assert path.uri.startswith("file://")
    assert path.uri.isascii()
    assert PathUri.parse(path.uri) == path
    try:
        native = path.native()
    except InvalidRequest:
        return
    assert os.path.normpath(native).lstrip(b"/") == native.lstrip(b"/")
    assert b"\0" not in native
