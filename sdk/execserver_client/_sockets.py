"""TCP, TLS and Unix sockets on asyncio.  Nothing here has a time limit: callers bound the whole."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from typing import Any, NamedTuple, TypeAlias

from execserver.client.carriers.tuning import tune
from execserver.client.carriers.urls import Address
from execserver.client.options import ExecServerClientConnectOptions
from execserver_client._conversation import SHUTDOWN_S, Conversation

_Found: TypeAlias = "tuple[Any, ...]"  # one entry of `socket.getaddrinfo`


class Place(NamedTuple):
    """One address: the arguments of a socket, and where it connects to."""

    family: int
    kind: int
    protocol: int
    target: Any


async def open_conversation(address: Address, options: ExecServerClientConnectOptions) -> Conversation:
    """Connect, with TLS if the address says so.  Raises OSError."""
    loop = asyncio.get_running_loop()
    # Before the connection: without certificates there is none.
    context = tls_context(options) if address.secure else None
    sock = await _connected(address)
    try:
        if context is None:
            _, conversation = await loop.create_connection(Conversation, sock=sock)
        else:
            _, conversation = await loop.create_connection(
                Conversation,
                sock=sock,
                ssl=context,
                server_hostname=address.host,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
    except BaseException:
        sock.close()
        raise
    return conversation


def tls_context(options: ExecServerClientConnectOptions) -> ssl.SSLContext:
    """Return what decides about a server's certificate.  Raises OSError for files that cannot be used."""
    if options.ssl_context is not None:
        return options.ssl_context
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if options.ca_file is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(options.ca_file)
    if options.client_certificate is not None:
        context.load_cert_chain(*options.client_certificate)
    return context


async def _connected(address: Address) -> socket.socket:
    if address.socket_file is not None:
        return await connect(Place(socket.AF_UNIX, socket.SOCK_STREAM, 0, address.socket_file))
    found = await _look_up(address.host, address.port)
    places = [Place(family, kind, protocol, target) for family, kind, protocol, _, target in found]
    if len(places) == 1:
        sock = await connect(places[0])
    else:
        from execserver_client._racing import first_to_answer, in_turn  # late: most addresses are one

        sock = await first_to_answer(in_turn(places))
    tune(sock)
    return sock


async def connect(place: Place) -> socket.socket:
    """Return a socket connected to one place.  Raises OSError."""
    sock = socket.socket(place.family, place.kind, place.protocol)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, place.target)
    except BaseException:
        sock.close()
        raise
    return sock


async def _look_up(host: str, port: int) -> list[_Found]:
    """Return the addresses of a host, the best first.

    A name is looked up in a thread of its own, which ends with it: one of the loop's pool would stay, and
    hold up the end of the program while a resolver does not answer.
    """
    try:
        return socket.getaddrinfo(
            host.encode("ascii"), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    except (OSError, UnicodeEncodeError):
        pass  # no address, but a name
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[_Found]] = loop.create_future()

    def ask() -> None:
        found: list[_Found] | OSError
        try:
            found = list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            found = error
        except UnicodeError:
            found = OSError(f"{host!r} is no name of a host")
        try:
            loop.call_soon_threadsafe(_settle, answer, found)
        except RuntimeError:
            pass  # the loop has ended, and with it whoever asked

    threading.Thread(target=ask, name="execserver-client-lookup", daemon=True).start()
    return await answer


def _settle(answer: asyncio.Future[list[_Found]], found: list[_Found] | OSError) -> None:
    if answer.done():
        return  # nobody waits any more
    if isinstance(found, OSError):
        answer.set_exception(found)
    else:
        answer.set_result(found)
