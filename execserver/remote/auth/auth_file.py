"""`auth.json` in the home folder of the codex CLI: read as it is, rewritten as a whole or not at all.

A rewrite keeps members that it does not know.  The new file has mode 0600 from the start and replaces the old
one in one step, so that neither a crash nor another reader ever leaves or finds half of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

FILE_NAME = "auth.json"
_MAX_BYTES = 1024 * 1024

Document = dict[str, object]


class UnreadableAuthFile(Exception):
    """The file exists but is no JSON object; the text says what is wrong and repeats nothing of it."""


class AuthFile:
    """One `auth.json`."""

    def __init__(self, codex_home: str) -> None:
        self.folder = codex_home
        self.path = os.path.join(codex_home, FILE_NAME)

    def read(self) -> Document | None:
        """Return the content, None if there is no file.  Raises UnreadableAuthFile."""
        try:
            with open(self.path, "rb") as file:
                data = file.read(_MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnreadableAuthFile(f"cannot read {self.path}: {error.strerror}") from None
        try:
            document = json.loads(data)
        except ValueError as error:
            position = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            raise UnreadableAuthFile(f"{self.path} is not JSON{position}") from None
        if not isinstance(document, dict):
            raise UnreadableAuthFile(f"{self.path} is not a JSON object")
        return document

    def write_tokens(self, tokens: Mapping[str, str], last_refresh: str) -> None:
        """Store new tokens in the file as it is now.  Raises OSError."""
        # Read again, so that what another program has changed meanwhile is kept.
        try:
            document = self.read() or {}
        except UnreadableAuthFile as error:
            raise OSError(str(error)) from None
        kept = document.get("tokens")
        document["tokens"] = {**(kept if isinstance(kept, dict) else {}), **tokens}
        document["last_refresh"] = last_refresh
        self._replace(json.dumps(document, indent=2, ensure_ascii=False).encode())

    def _replace(self, data: bytes) -> None:
        target = os.path.realpath(self.path)  # a symlink is followed, not replaced
        temporary = f"{target}.{os.getpid()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(temporary, flags, 0o600)
        try:
            with open(descriptor, "wb") as file:
                os.fchmod(file.fileno(), 0o600)  # the file may be left over from an earlier crash
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # before the rename, or a power cut could leave an empty file
            os.rename(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
