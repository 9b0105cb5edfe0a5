"""Who is on the other end of a connection, as the listener has proven it."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Grant(NamedTuple):
    """What a holder may do at most; it is laid over every request, and the narrower wins.

    `roots`: folders (absolute paths) outside of which nothing is writable; None: as the request says.
    """

    roots: tuple[str, ...] | None = None
    read_only: bool = False
    network: bool = True


class Identity(NamedTuple):
    """One proven peer.

    `way`: "token", "jwt", "tls", "uid", "oidc" or "none"; `name`: its label for logs and lists.
    """

    way: str
    name: str
    grant: Grant | None = None

    @property
    def label(self) -> str | None:
        """What rules of the machine call it, which no peer chooses; None while nobody can tell."""
        return self.name


NOBODY = Identity("none", "")


class NotAdmitted(Exception):
    """The peer has not proven who it is; `text` is the body of the 401."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Authenticator(Protocol):
    """Decides by the value of `Authorization` (None: no such header) at a time in Unix seconds.

    `may_wait`: deciding may block its greenlet.
    """

    @property
    def may_wait(self) -> bool:
        """See above."""

    def identify(self, authorization: bytes | None, now: float) -> Identity:
        """Return who it is; raise NotAdmitted."""
