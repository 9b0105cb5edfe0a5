"""One connection to the engine, made ready: address found, TLS done, signed in, database chosen.

With sentinels, the first that answers says where the primary is, and the engine itself has to confirm that it
is one: a sentinel may be late.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from execserver.eventloop.deadline import at_most
from execserver.http_client.connect import SocketConnector
from execserver.relay.engine.address import Credentials, EngineAddress
from execserver.relay.engine.resp import Command, Decoder, Failure, InvalidReply, Reply, encode
from execserver.relay.errors import CannotServe, EngineSilent

if TYPE_CHECKING:
    from gevent.socket import socket
    from gevent.ssl import SSLSocket

    from execserver.http_client.tls import Tls

_DIAL_S = 3.0  # for all of it
_SENTINEL_S = 0.7  # for one sentinel
_RECEIVE_BYTES = 64 * 1024
_TELLING = 16  # characters at the beginning of a password
_HOST = re.compile(rb"[0-9A-Za-z:][0-9A-Za-z:._-]{0,252}")
_PORT = re.compile(rb"[0-9]{1,5}")


class SignInRefused(CannotServe):
    """The engine does not take us; trying again would not help."""


class Line:
    """A connected socket that asks and answers in turn; owns the socket."""

    def __init__(self, sock: socket | SSLSocket) -> None:
        self.sock = sock
        self.decoder = Decoder()
        self._replies: list[Reply] = []

    def ask(self, *commands: Command) -> list[Reply]:
        """Return the replies to some commands, in order.  Raises EngineSilent; waits as long as it takes."""
        try:
            self.sock.sendall(b"".join(map(encode, commands)))
            while len(self._replies) < len(commands):
                data = self.sock.recv(_RECEIVE_BYTES)
                if not data:
                    raise EngineSilent("the engine closed the connection")
                self._replies += self.decoder.feed(data)
        except (OSError, InvalidReply) as error:
            raise EngineSilent(f"the engine: {error}") from None
        replies, self._replies = self._replies[: len(commands)], self._replies[len(commands) :]
        return replies

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()


class Dialer:
    """Makes lines to one engine."""

    def __init__(self, address: EngineAddress, credentials: Credentials, environ: Mapping[str, str]) -> None:
        """Raises NoTrust if TLS is asked for and there is no authority to trust."""
        self.address = address
        self._credentials = credentials
        self._connector = SocketConnector()
        self._tls: Tls | None = None
        if address.tls:
            from execserver.http_client.tls import Tls  # late: most engines have none

            self._tls = Tls(environ)

    def dial(self) -> Line:
        """Return a line to the primary.  Raises EngineSilent, SignInRefused."""
        line: Line | None = None
        with at_most(_DIAL_S):
            line = self._dial()
        if line is None:
            raise EngineSilent(f"{self.address.shown} does not answer")
        return line

    def _dial(self) -> Line:
        host, port = self._primary() if self.address.master else self.address.hosts[0]
        line = self._connected(host, port)
        try:
            self._sign_in(line)
        except BaseException:
            line.close()
            raise
        return line

    def _connected(self, host: str, port: int) -> Line:
        try:
            sock = self._connector.connect(host, port)
            return Line(sock if self._tls is None else self._tls.wrap(sock, host))
        except OSError as error:
            raise EngineSilent(f"{host}:{port}: {error.strerror or error}") from None

    def _sign_in(self, line: Line) -> None:
        user, password = self._credentials
        if password:
            (reply,) = line.ask(("AUTH", user, password) if user else ("AUTH", password))
            if isinstance(reply, Failure):
                # An engine that does not know the command repeats its words.
                why = reply.code if password[:_TELLING] in reply.text else reply.text
                raise SignInRefused(f"the engine refuses the credentials of --engine-auth: {why}")
        database = self.address.database
        role, chosen = line.ask(("ROLE",), ("SELECT", database) if database else ("PING",))
        for reply in (role, chosen):
            if isinstance(reply, Failure):
                if reply.code in ("NOAUTH", "NOPERM"):
                    raise SignInRefused(f"the engine wants other credentials (--engine-auth): {reply.text}")
                raise EngineSilent(f"the engine: {reply.text}")
        if not isinstance(role, list) or role[:1] != [b"master"]:
            raise EngineSilent("the engine is a replica")

    def _primary(self) -> tuple[str, int]:
        """Return what the first sentinel that answers says.  Raises EngineSilent."""
        for host, port in self.address.hosts:
            found: Reply = None
            with at_most(_SENTINEL_S):
                found = self._told_by(host, port)
            place = _place_in(found)
            if place is not None:
                return place
        raise EngineSilent(f"no sentinel of {self.address.shown} knows its primary")

    def _told_by(self, host: str, port: int) -> Reply:
        try:
            line = self._connected(host, port)
        except EngineSilent:
            return None
        try:
            return line.ask(("SENTINEL", "get-master-addr-by-name", self.address.master or ""))[0]
        except EngineSilent:
            return None
        finally:
            line.close()


def _place_in(told: Reply) -> tuple[str, int] | None:
    """Return the host and port that a sentinel has told, None for anything else: nobody vouches for it."""
    if not isinstance(told, list) or len(told) != 2:
        return None
    host, port = told
    if not isinstance(host, bytes) or not isinstance(port, bytes):
        return None
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        return None
    return host.decode(), int(port)
