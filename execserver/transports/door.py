"""The door of a listener: who may upgrade a connection, asked after everything HTTP says was in order.

First by which name the peer calls this machine, then who it is.  The time is an argument.  The door of a
listener that asks nobody lets everybody in; an authenticator may have to wait, in the connection's greenlet.
"""

from __future__ import annotations

from execserver.access.identity import NOBODY, Authenticator, Identity, NotAdmitted
from execserver.wire.handshake import Request
from execserver.wire.host_names import names_loopback

_FORBIDDEN, _UNAUTHORIZED = 403, 401
_FOREIGN_HOST = "this server listens on loopback: Host must be a loopback address or localhost"


class Refused(Exception):
    """A request is not let in; status and text are those of the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Door:
    """Decides about requests that would be upgraded.

    With `loopback` a Host header must name this machine; a request may have none, as at the reference
    server, since browsers send one always.
    """

    __slots__ = ("_authenticator", "_loopback")

    def __init__(self, authenticator: Authenticator | None = None, *, loopback: bool = False) -> None:
        self._authenticator = authenticator
        self._loopback = loopback

    @property
    def may_wait(self) -> bool:
        """Whether `admit` may block its greenlet."""
        return self._authenticator is not None and self._authenticator.may_wait

    def admit(self, request: Request, now: float, standing: Identity = NOBODY) -> Identity:
        """Return who sent a request; raise Refused.

        `standing` is who the connection itself has proven its peer to be.  An authenticator is asked in
        addition, and what it finds replaces it.
        """
        if self._loopback and not all(map(names_loopback, request.values("host"))):
            raise Refused(_FORBIDDEN, _FOREIGN_HOST)
        if self._authenticator is None:
            return standing
        given = request.values("authorization")
        # The first counts, as at the reference server.
        authorization = given[0].encode("latin-1") if given else None
        try:
            return self._authenticator.identify(authorization, now)
        except NotAdmitted as refusal:
            raise Refused(_UNAUTHORIZED, refusal.text) from None


OPEN_DOOR = Door()
