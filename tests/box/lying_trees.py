"""What a box that means ill says of its files: listings, contents and archives."""

from __future__ import annotations

import base64
import itertools
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from execserver.box.trees import tar
from execserver.protocol.tar_header import BLOCK
from tests.box.liar import Answer, Asked, Liar

Json = dict[str, Any]


def in_base64(data: bytes) -> str:
    """Return bytes as they go into JSON."""
    return base64.b64encode(data).decode()


def entry(name: bytes, kind: str = "file", *, target: bytes | None = None, **members: object) -> Json:
    """Return what a listing has about a name: of a file of 4 bytes, if nothing else is said."""
    found: Json = {"name": in_base64(name), "kind": kind, "size": 4, "modifiedAtNs": 0, "mode": 0o644}
    if target is not None:
        found["target"] = in_base64(target)
    return found | members


TOP = entry(b"", "directory", mode=0o755)


def page(*entries: Json, **members: object) -> Json:
    """Return the last page of a listing."""
    return {"entries": entries, "errors": [], "next": None} | members


def said(result: object) -> Answer:
    """Return what answers always the same."""
    return lambda asked: asked.result(result)


def introduce(asked: Asked, **own: object) -> None:
    """Answer `initialize` as a server that knows trees, whose home is the root."""
    info = {"shell": {"name": "sh", "path": "/bin/sh"}, "execserver": {"fsMany": True}, **own}
    asked.result({"sessionId": "s", "environmentInfo": info})


def read_many(asked: Asked) -> None:
    """Answer with `evil` for every name."""
    asked.result({"files": [{"content": in_base64(b"evil")} for _ in asked.params["names"]]})


def opened(asked: Asked) -> None:
    """Answer `fs/open`."""
    asked.result({"handleId": asked.params["handleId"]})


def block(asked: Asked) -> None:
    """Answer with as many bytes as were asked for, wherever the file ends."""
    asked.result({"chunk": in_base64(b"x" * asked.params["len"]), "eof": False})


ANSWERS: Mapping[str, Answer] = {
    "initialize": introduce,
    "fs_canonicalize": lambda asked: asked.result({"path": asked.params["path"]}),
    "fs_list": said(page(TOP, entry(b"f"))),
    "fs_readMany": read_many,
    "fs_hash": lambda asked: asked.result(hashes(asked.params["path"])),
    "fs_open": opened,
    "fs_readBlock": block,
    "fs_close": said({}),
}
"""Of a box with a folder, and in it one file of 4 bytes."""


def hashes(path: str, **members: object) -> Json:
    """Return the last page of hashes: one for a path."""
    found = {"path": path, "size": 4, "modifiedAtNs": 0, "mode": 0o644, "sha256": "0" * 64}
    return {"entries": [found], "errors": [], "next": None} | members


def box(**answers: Answer) -> Liar:
    """Return a box that answers as `ANSWERS` does, but for these."""
    return Liar(**{**ANSWERS, **answers})


def endless(make: Any) -> Answer:
    """Return what answers with another page each time: `make` is called with 0, 1, ..."""
    numbers: Iterator[int] = itertools.count()
    return lambda asked: asked.result(make(next(numbers)))


def sending(*pieces: bytes, code: int = 0) -> Answer:
    """Return what starts a program that prints these, and ends."""

    def send(asked: Asked) -> None:
        asked.result({"processId": asked.params["processId"]})
        for seq, piece in enumerate(pieces, 1):
            asked.output(seq, piece)
        asked.end(len(pieces) + 1, code)

    return send


def archived(name: bytes, kind: str = tar.FILE, content: bytes = b"", **members: Any) -> bytes:
    """Return an entry of an archive with its content."""
    made = tar.header(tar.Entry(name, kind, len(content), **members))
    return made + content + bytes(tar.padding(len(content)))


def flagged(name: bytes, flag: bytes, **members: Any) -> bytes:
    """Return an entry without content of a kind that our own archives never have."""
    header = bytearray(tar.header(tar.Entry(name, tar.FILE, **members))[-BLOCK:])
    header[156:157] = flag
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@contextmanager
def small_files() -> Iterator[None]:
    """Let this process write no file above 64 MiB: a client that fails a test must not fill the disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024 * 1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
