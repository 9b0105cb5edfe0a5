"""File requests with a sandbox, asked in few words, and the answers the contract has for them."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from tests.e2e.sandbox_places import Place
from tests.support.peer import Json, RemoteError
from tests.support.proc import is_kept_ready
from tests.support.sandboxes import context, managed, rule

READ_ONLY = (-32603, "Read-only file system (os error 30)")
REFUSED = (-32600, "Permission denied (os error 13)")
NOT_THERE = (-32004, "No such file or directory (os error 2)")


class Files:
    """The file requests of one connection under one sandbox."""

    def __init__(self, place: Place, sandbox: Json) -> None:
        self.place = place
        self.sandbox = sandbox
        self.denial: Json = None  # what the last error said about the sandbox

    def ask(self, method: str, path: Path | str, /, **members: Json) -> Json:
        """Return the result, or code and message of the error."""
        name = "sourcePath" if method == "fs/copy" else "path"
        params = {name: f"file://{path}", "sandbox": self.sandbox, **members}
        self.denial = None
        try:
            return self.place.peer.call(method, params)
        except RemoteError as error:
            self.denial = None if error.data is None else error.data["sandbox"]
            return (error.code, error.message)

    def read(self, path: Path | str) -> Json:
        """Return the content of a file, or the error."""
        return content_of(self.ask("fs/readFile", path), "dataBase64")

    def write(self, path: Path | str, data: bytes = b"written") -> Json:
        """Write a file; return the empty result or the error."""
        return self.ask("fs/writeFile", path, dataBase64=base64.b64encode(data).decode())

    def copy(self, source: Path | str, target: Path | str, *, recursive: bool = False) -> Json:
        """Copy; return the empty result or the error."""
        return self.ask("fs/copy", source, destinationPath=f"file://{target}", recursive=recursive)

    def read_opened(self, path: Path | str) -> Json:
        """Return what opening and reading a block gives, or the error."""
        opened = self.ask("fs/open", path, handleId="h")
        if not isinstance(opened, dict):
            return opened
        try:
            block = self.place.peer.call("fs/readBlock", {"handleId": "h", "offset": 0, "len": 4096})
            return content_of(block, "chunk")
        finally:
            self.close()

    def write_opened(self, path: Path | str, data: bytes = b"written") -> Json:
        """Open a file to replace it and write a block; return the empty result or the error."""
        opened = self.ask("fs/open", path, handleId="h", mode="replace")
        if not isinstance(opened, dict):
            return opened
        chunk = base64.b64encode(data).decode()
        try:
            return self.place.peer.call("fs/writeBlock", {"handleId": "h", "offset": 0, "chunk": chunk})
        finally:
            self.close()

    def close(self) -> None:
        """Close the one handle."""
        self.place.peer.call("fs/close", {"handleId": "h"})

    def names(self, path: Path | str) -> Json:
        """Return the sorted names in a directory, or the error."""
        found = self.ask("fs/readDirectory", path)
        return sorted(entry["fileName"] for entry in found["entries"]) if isinstance(found, dict) else found


def content_of(answer: Json, member: str) -> Json:
    """Return the bytes in an answer, or the answer itself if it is an error."""
    return base64.b64decode(answer[member]) if isinstance(answer, dict) else answer


def workers_of(server_pid: int) -> list[int]:
    """Return the file workers of a server: children of its zygotes that never exec'ed anything else."""
    found = []
    for zygote in children_of(server_pid):
        command = _command(zygote)
        found += [pid for pid in children_of(zygote) if _command(pid) == command and not is_kept_ready(pid)]
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def children_of(pid: int) -> list[int]:
    """Return the live children of a process."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += [int(text) for text in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except OSError:
        pass  # it has just ended
    return found


def only(place: Place, path: Path, access: str) -> Json:
    """A policy that grants one folder and nothing else."""
    return context(managed(rule(path, access)), place.ws)
