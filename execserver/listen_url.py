"""The value of `--listen`: what it may be, and the errors for a refused one (wire contract, section 1).

Accepts only an exact socket address: no host names, no path, no other spelling of the scheme.
"""

from __future__ import annotations

import _socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from execserver.tuples import NamedTuple

DEFAULT_LISTEN_URL = "ws://127.0.0.1:0"

_WEBSOCKET_SCHEME = "ws://"
_SECURE_SCHEME = "wss://"
_UNIX_SCHEME = "unix://"
_STDIO_URLS = ("stdio", "stdio://")
_DIGITS = frozenset("0123456789")
_MAX_PORT = 0xFFFF
_MAX_SCOPE_ID = 0xFFFF_FFFF
_IPV6_LOOPBACK = bytes(15) + b"\1"
_MAPPED_LOOPBACK = bytes(10) + b"\xff\xff\x7f"  # ::ffff:127.0.0.0/104


class ExecServerListenUrlParseError(ValueError):
    """A `--listen` value that names no transport; the text is for the user."""

    def __init__(self, url: str, text: str) -> None:
        super().__init__(text)
        self.url = url


class InvalidWebSocketListenUrl(ExecServerListenUrlParseError):
    """The scheme is `ws://`, but no IP:PORT follows."""

    def __init__(self, url: str) -> None:
        scheme = url.partition("://")[0]
        super().__init__(url, f"invalid websocket --listen URL `{url}`; expected `{scheme}://IP:PORT`")


class InvalidUnixListenUrl(ExecServerListenUrlParseError):
    """The scheme is `unix://`, but no absolute path follows."""

    def __init__(self, url: str) -> None:
        super().__init__(url, f"invalid unix --listen URL `{url}`; expected `unix:///PATH`")


class UnsupportedListenUrl(ExecServerListenUrlParseError):
    """The value is neither `ws://...` nor standard input and output."""

    def __init__(self, url: str) -> None:
        super().__init__(url, f"unsupported --listen URL `{url}`; expected `ws://IP:PORT` or `stdio`")


class InsecureListenUrl(ExecServerListenUrlParseError):
    """Others can reach the address, and nobody would be asked who they are."""

    cure = "ask for a token with --ws-auth, listen on 127.0.0.1, or accept it with --insecure-listen"

    def __init__(self, url: str) -> None:
        text = f"listening on `{url}` without authentication lets whoever reaches it run commands as you"
        super().__init__(url, text)


class WsListen(NamedTuple):
    """Listen for WebSocket and HTTP on one IP address; with port 0 the system chooses a free port."""

    host: str
    port: int
    scope_id: int = 0
    tls: bool = False

    @property
    def is_ipv6(self) -> bool:
        """True if the address needs an IPv6 socket."""
        return ":" in self.host

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can connect to the address."""
        if not self.is_ipv6:
            return self.host.startswith("127.")
        packed = _socket.inet_pton(_socket.AF_INET6, self.host.partition("%")[0])
        return packed == _IPV6_LOOPBACK or packed.startswith(_MAPPED_LOOPBACK)


class UnixListen(NamedTuple):
    """Listen for WebSocket and HTTP on a Unix socket of the server's user."""

    path: str


class Stdio:
    """Serve stdin and stdout, one message per line."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stdio)

    def __hash__(self) -> int:
        return hash(Stdio)

    def __repr__(self) -> str:
        return "Stdio()"


Listen = WsListen | UnixListen | Stdio


def parse_listen_url(url: str) -> Listen:
    """Return the transport that a `--listen` value names, or raise ExecServerListenUrlParseError."""
    if url in _STDIO_URLS:
        return Stdio()
    if url.startswith(_UNIX_SCHEME):
        path = url[len(_UNIX_SCHEME) :]
        if not path.startswith("/") or path.endswith("/") or "\0" in path:
            raise InvalidUnixListenUrl(url)
        return UnixListen(path)
    tls = url.startswith(_SECURE_SCHEME)
    if not tls and not url.startswith(_WEBSOCKET_SCHEME):
        raise UnsupportedListenUrl(url)
    address = _parse_socket_address(url.partition("://")[2])
    if address is None:
        raise InvalidWebSocketListenUrl(url)
    return address._replace(tls=tls)


def listen_url(host: str, port: int, scope_id: int = 0, *, tls: bool = False) -> str:
    """Return the URL of a bound socket as it is printed, IPv6 addresses in brackets."""
    scheme = "wss" if tls else "ws"
    if ":" not in host:
        return f"{scheme}://{host}:{port}"
    bare = host.partition("%")[0]
    scope = f"%{scope_id}" if scope_id else ""
    return f"{scheme}://[{bare}{scope}]:{port}"


def _parse_socket_address(text: str) -> WsListen | None:
    """Return the parts of `1.2.3.4:80`, `[::1]:80` or `[fe80::1%2]:80`; None for anything else."""
    host, colon, port_text = text.rpartition(":")
    port = _number(port_text, _MAX_PORT)
    if not colon or port is None:
        return None
    if not host.startswith("["):
        return WsListen(host, port) if _is_address(host, ipv6=False) else None
    if not host.endswith("]"):
        return None
    bare, percent, scope_text = host[1:-1].partition("%")
    scope_id = _number(scope_text, _MAX_SCOPE_ID) if percent else 0
    if scope_id is None or not _is_address(bare, ipv6=True):
        return None
    return WsListen(bare, port, scope_id)


def _number(text: str, maximum: int) -> int | None:
    """Return an unsigned decimal number, or None; `int` alone would accept signs, blanks and underscores."""
    if not text or not _DIGITS.issuperset(text) or len(text) > 64:
        return None
    value = int(text)
    return value if value <= maximum else None


def _is_address(text: str, *, ipv6: bool) -> bool:
    """Return whether the C library reads this as a numeric address; it refuses leading zeros, as it must."""
    try:
        _socket.inet_pton(_socket.AF_INET6 if ipv6 else _socket.AF_INET, text)
    except (OSError, ValueError):
        return False
    return True
