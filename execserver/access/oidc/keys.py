"""What an authenticator knows of keys: that some source finds the one that a token names.

Small, since a server that is told to ask for tokens loads it before it prints its URL.
"""

from __future__ import annotations

from typing import Protocol


class NoKeys(Exception):
    """There are no keys now, so nothing can be checked; the text says why, for the log."""


class Key(Protocol):
    """A public key that may be used for some algorithms."""

    def verifies(self, algorithm: str, signature: bytes, signed: bytes) -> bool:
        """Tell whether a signature by this algorithm is the key's; False for one that it does not serve."""


class KeySource(Protocol):
    """The keys of one provider; `find` may block its greenlet if it `may_wait`."""

    @property
    def may_wait(self) -> bool:
        """See above."""

    def find(self, kid: str | None, algorithm: str) -> Key | None:
        """Return the key that a token names, None if there is none; may wait.  Raises NoKeys."""
