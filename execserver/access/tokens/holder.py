"""The holder of a token, as the server knows a peer: one only for as long as the token is valid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from execserver.access.identity import Grant, Identity

# Returns at a time, in Unix seconds, why a token is no longer valid; None while it is.
Lapsed = Callable[[float], str | None]
# Returns the label that a token was issued with, "" without one; None while nobody can tell.
Labelled = Callable[[], str | None]


class Holder(Identity):
    """An identity that can end while its connection is open.  Equal ones have the same name and grant."""

    _lapsed: Lapsed
    _labelled: Labelled
    token: tuple[str, tuple[str, ...]] | None

    def __new__(
        cls,
        name: str,
        grant: Grant,
        lapsed: Lapsed,
        token: tuple[str, tuple[str, ...]] | None = None,
        labelled: Labelled = lambda: None,
    ) -> Self:
        """`token` has id and caveats, of which another server can make the holder anew."""
        made = super().__new__(cls, "token", name, grant)
        made._lapsed, made._labelled, made.token = lapsed, labelled, token
        return made

    @property
    def label(self) -> str | None:
        """The label that the token was issued with, and none that a holder has added."""
        return self._labelled()

    def lapsed(self, now: float) -> str | None:
        """Return why the token is no longer valid, None while it is."""
        return self._lapsed(now)
