"""A provider's keys in a file, which is read again when it has changed.

While it cannot be used, there are no keys: so a new file is best moved into the place of the old one.
"""

from __future__ import annotations

import logging
import os

from execserver.access.oidc.key_set import MAX_BYTES, BadKeySet, KeySet, read_key_set
from execserver.access.oidc.keys import Key, NoKeys
from execserver.protocol.errors import os_error_text

_log = logging.getLogger(__name__)


class KeyFile:
    """The keys of one file; a `KeySource`."""

    may_wait = False

    def __init__(self, path: str) -> None:
        """Read the file.  Raises NoKeys."""
        self._path = os.path.abspath(path)
        self._stamp = self._look()
        self._keys: KeySet | None = self._read()

    def find(self, kid: str | None, algorithm: str) -> Key | None:
        """See `KeySource`."""
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp = stamp
            self._read_again()
        if self._keys is None:
            raise NoKeys(f"{self._path} could not be used")
        return self._keys.find(kid, algorithm)

    def _read_again(self) -> None:
        try:
            self._keys = self._read()
        except NoKeys as reason:
            self._keys = None
            _log.error("no token is accepted: %s", reason)
        else:
            _log.info("the keys of %s were read again", self._path)

    def _read(self) -> KeySet:
        try:
            with open(self._path, "rb", opener=_without_waiting) as file:
                return read_key_set(file.read(MAX_BYTES + 1))
        except OSError as error:
            raise NoKeys(f"cannot read {self._path}: {os_error_text(error.errno or 0)}") from None
        except BadKeySet as error:
            raise NoKeys(f"{self._path} holds no keys of a provider: {error}") from None

    def _look(self) -> tuple[int, ...] | None:
        """Return what changes with the file."""
        try:
            facts = os.stat(self._path)
        except OSError:
            return None
        return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a FIFO in its place must not stop the server."""
    return os.open(path, flags | os.O_NONBLOCK)
