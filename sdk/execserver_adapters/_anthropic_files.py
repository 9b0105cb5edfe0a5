"""The file tools: paths of a working folder on a box, files as text or as pictures, searches.

Every answer is bounded, and says so where something is left out.
"""

from __future__ import annotations

import asyncio
import base64
import os
import posixpath
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Final

from execserver_adapters._os_errors import as_os_error
from execserver_adapters._real_paths import below, real_path
from execserver_adapters._text_edits import line_range, lines_of, replaced
from execserver_client import Box, ExecServerError, FileTooLarge, RequestFailed

_PICTURES: Final = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".pdf": "application/pdf",
}
_MOST_PICTURE: Final = 5 * 1024 * 1024 // 4 * 3  # 5 MiB of base64, the API's limit of an image
_MOST_PDF: Final = 20 * 1024 * 1024
_MOST_RANGED: Final = 64 * 1024 * 1024  # of a file of which only some lines are asked for
_MOST_FOUND: Final = 1000
_SHOWN: Final = 200
_AT_ONCE: Final = 32


class Refused(Exception):
    """A tool cannot do it; the text is for the model."""


class Files:
    """The files of one working folder."""

    def __init__(self, box: Box, root: str, *, sandbox: Any, most_text: int, most_output: int) -> None:
        self._box = box
        self._root = root
        self._sandbox = sandbox
        self._most_text = most_text
        self._most_output = most_output

    async def read(self, path: str, view_range: Sequence[int] | None) -> str | list[dict[str, Any]]:
        """Return a text or some lines of it, or a content block of a picture or a PDF."""
        wanted = line_range(view_range)
        place = await self._place(path)
        kind = _PICTURES.get(posixpath.splitext(place)[1].lower())
        if kind is not None:
            if wanted:
                raise Refused(f"{path}: view_range is not for pictures and PDF files")
            limit = _MOST_PDF if kind == "application/pdf" else _MOST_PICTURE
            return [_block(kind, await self._bytes(place, path, limit))]
        text = await self._text(place, path, _MOST_RANGED if wanted else self._most_text)
        if wanted is None:
            return text
        chosen = lines_of(text, *wanted)
        if len(chosen.encode()) > self._most_text:
            raise Refused(f"{path}: these lines have more than {self._most_text} bytes; ask for fewer")
        return chosen

    async def write(self, path: str, content: str) -> str:
        """Write a file and the folders it lies in."""
        place = await self._place(path)
        data = content.encode()
        try:
            await self._box.files.mkdir(posixpath.dirname(place), parents=True, sandbox=self._sandbox)
            await self._box.files.write(place, data, sandbox=self._sandbox)
        except RequestFailed as error:
            raise Refused(_reason(error, path)) from error
        return f"wrote {len(data)} bytes to {path}"

    async def edit(self, path: str, old: str, new: str, everywhere: bool) -> str:
        """Replace a string of a file, unless somebody changed the file meanwhile."""
        place = await self._place(path)
        try:
            version = (await self._box.files.version(place, sandbox=self._sandbox)).version
            text = await self._text(place, path, self._most_text)
            changed, count = replaced(text, old, new, everywhere=everywhere)
            await self._box.files.replace(
                place, changed.encode(), if_unchanged=version, sandbox=self._sandbox
            )
        except RequestFailed as error:
            raise Refused(_reason(error, path)) from error
        except ValueError as error:
            raise Refused(f"{error} in {path}") from error
        return f"edited {path} ({count} replacement(s))"

    async def glob(self, pattern: str, path: str | None) -> str:
        """Return the paths of files that match, the newest first."""
        if posixpath.isabs(pattern) or ".." in pattern.split("/"):
            raise Refused("the pattern must be relative, without '..'; name the folder in path")
        root = await self._place(path or ".")
        found: list[str] = []
        try:
            async with aclosing(self._box.files.glob(root, pattern, sandbox=self._sandbox)) as entries:
                async for each in entries:
                    if not hasattr(each, "message") and each.kind.value == "file":
                        found.append(os.fsdecode(each.path.native()))
                    if len(found) > _MOST_FOUND:
                        break
        except RequestFailed as error:
            raise Refused(_reason(error, path or ".")) from error
        if not found:
            return "no matches"
        newest = await self._newest_first(found[:_MOST_FOUND])
        more = len(found) > _SHOWN
        return "\n".join([*newest[:_SHOWN], *(["[there are more matches]"] if more else [])])

    async def grep(self, pattern: str, path: str | None) -> str:
        """Return the lines that match, each behind its file and number."""
        root = await self._place(path or ".")
        lines: list[str] = []
        size = 0
        try:
            async with aclosing(self._box.files.search(root, pattern, sandbox=self._sandbox)) as matches:
                async for each in matches:
                    if hasattr(each, "message"):
                        continue
                    line = f"{os.fsdecode(each.path.native())}:{each.line}:{each.text}"
                    size += len(line) + 1
                    if size > self._most_output:
                        lines.append(f"[output truncated at {self._most_output} bytes]")
                        break
                    lines.append(line)
        except RequestFailed as error:
            raise Refused(_reason(error, path or ".")) from error
        return "\n".join(lines) or "no matches"

    async def _place(self, path: str) -> str:
        """Return where a path leads.  Raises Refused for a place outside the working folder."""
        if "\0" in path:
            raise Refused("a path has no NUL character")
        wanted = posixpath.normpath(posixpath.join(self._root, path))
        try:
            real = await real_path(self._box, wanted, self._sandbox)
            root = await real_path(self._box, self._root, self._sandbox)
        except ValueError as error:
            raise Refused(f"{path}: {error}") from error
        except RequestFailed as error:
            raise Refused(_reason(error, path)) from error
        if not below(real, root):
            raise Refused(f"{path} is outside the working directory {self._root}")
        return real

    async def _bytes(self, place: str, path: str, limit: int) -> bytes:
        try:
            about = await self._box.files.stat(place, sandbox=self._sandbox)
            if not about.is_file:
                raise Refused(f"{path}: not a regular file")
            if about.size > limit:
                raise Refused(_too_large(path, about.size, limit))
            return await self._box.files.read(place, sandbox=self._sandbox, max_bytes=limit)
        except FileTooLarge as error:
            raise Refused(_too_large(path, limit + 1, limit)) from error
        except RequestFailed as error:
            raise Refused(_reason(error, path)) from error

    async def _text(self, place: str, path: str, limit: int) -> str:
        try:
            return (await self._bytes(place, path, limit)).decode()
        except UnicodeDecodeError as error:
            raise Refused(f"{path}: not UTF-8 text; of other files only pictures and PDF are read") from error

    async def _newest_first(self, paths: list[str]) -> list[str]:
        room = asyncio.Semaphore(_AT_ONCE)

        async def changed_at(path: str) -> int:
            async with room:
                try:
                    return (await self._box.files.stat(path, sandbox=self._sandbox)).modified_at_ms
                except ExecServerError:
                    return 0  # it is gone meanwhile

        times = await asyncio.gather(*(changed_at(path) for path in paths))
        return [path for _, path in sorted(zip(times, paths, strict=True), key=lambda each: -each[0])]


def _block(kind: str, data: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": kind, "data": base64.standard_b64encode(data).decode()}
    return {"type": "document" if kind == "application/pdf" else "image", "source": source}


def _too_large(path: str, size: int, limit: int) -> str:
    return f"{path} has {size} bytes, more than {limit}; ask for some lines with view_range: [1, 500]"


def _reason(error: RequestFailed, path: str) -> str:
    return f"{path}: {(as_os_error(error, path).strerror or error.message).lower()}"
