"""What is found in trees of a box, printed as it comes: names, lines, errors.

On a terminal everything from the box is escaped; elsewhere names go out byte for byte.  A path that is not
below what was asked for ends the search: names from a box are handed on to other programs here.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from execserver.box.descriptors import Sink
from execserver.box.shown import shown
from execserver.box.trees.native import native
from execserver.client.errors import ProtocolViolation
from execserver.leaving import write
from execserver.protocol.files import FsWalkError
from execserver.protocol.paths import PathUri


class Root(NamedTuple):
    """Where was searched: as it was asked for, and the path there."""

    asked: str
    place: PathUri

    def name_of(self, path: PathUri) -> bytes:
        """Return a path as it is to be printed, beginning as the root was asked for.

        Raises ProtocolViolation for one that is not below the root.
        """
        root, asked = self.place.native().rstrip(b"/"), os.fsencode(self.asked)
        found = native(path)
        if found == (root or b"/"):
            return asked
        names = found[len(root) + 1 :].split(b"/")
        if not found.startswith(root + b"/") or b".." in names or b"." in names or b"" in names:
            raise ProtocolViolation("the server sends paths that nobody asked for")
        return (asked.rstrip(b"/") if asked != b"/" else b"") + found[len(root) :]


class Answers:
    """Owns a sink for stdout until `close`; counts what could not be searched."""

    def __init__(self, *, as_json: bool, ends_names_with_null: bool) -> None:
        self.as_json = as_json
        self.failures = 0
        self._null = ends_names_with_null
        self._is_terminal = os.isatty(1)
        self._sink = Sink(1)

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()

    def name(self, name: bytes, end: bytes = b"\n") -> bytes:
        """Return a name and what is to stand behind it."""
        text = shown(name).encode() if self._is_terminal else name
        return text + (b"\0" if self._null else end)

    def text(self, text: str) -> bytes:
        """Return text of a line; tabs harm no terminal."""
        if self._is_terminal:
            text = "\t".join(shown(part) for part in text.split("\t"))
        return text.encode("utf-8", "surrogateescape")

    def put(self, data: bytes) -> None:
        """Print.  Raises OSError: BrokenPipeError without a reader."""
        self._sink.write(data)

    def found(self, root: Root, path: PathUri, **members: object) -> None:
        """Print the name of what was found, or as JSON with these members."""
        name = root.name_of(path)
        if self.as_json:
            self.member(name, path, **members)
        else:
            self.put(self.name(name))

    def member(self, name: bytes, path: PathUri, **members: object) -> None:
        """Print an object of JSON on a line; a name that is no UTF-8 is exact in `uri` only."""
        text = name.decode("utf-8", "replace")
        self.put(json.dumps({"path": text, "uri": path.uri, **members}).encode() + b"\n")

    def refuse(self, root: Root, error: FsWalkError) -> None:
        """Tell about what could not be searched, or only in part."""
        self.failures += 1
        name = root.name_of(error.path)
        if self.as_json:
            self.member(name, error.path, error=error.message)
        else:
            self.complain(name, error.message)

    def complain(self, name: bytes, message: str) -> None:
        """Tell about a path on stderr."""
        write(2, f"execserver: {shown(name)}: {shown(message, 1000)}\n")
