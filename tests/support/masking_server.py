"""A server that masks credentials, and a provider of the test's own that gets them."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

from tests.support.certificates import make_authority
from tests.support.peer import Json
from tests.support.proxy_settings import proxy_settings
from tests.support.running import PATH
from tests.support.sandboxes import read_only

KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJ"
TOKEN = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
VENDOR = "vendor_abcdefghijklmnopqrstuvwx"
INHERITED: Json = {
    "inherit": "all",
    "ignoreDefaultExcludes": True,
    "exclude": [],
    "set": {},
    "includeOnly": [],
}
CURL = 'curl -sS --max-time 30 -H "Authorization: Bearer $VENDOR_KEY" "$URL"'
# What can be read of other processes: of a sandbox's own init, too.
LEAKS = (
    "for p in /proc/[0-9]*; do cat $p/environ $p/cmdline 2>/dev/null | tr '\\0' '\\n'; done"
    " | grep -c '[a]bcdefghijkl'"
)


class Provider:
    """A TLS server that answers each request with the credential it came with."""

    def __init__(self, folder: Path) -> None:
        authority = make_authority()
        self.trusted = folder / "trusted.pem"
        self.trusted.write_bytes(authority.pem)
        pem = folder / "server.pem"
        pem.write_bytes(authority.issue("127.0.0.1"))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pem)
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.port = self._sock.getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}/v1/x"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._sock.accept()
            except OSError:
                return
            with suppress(OSError), self._context.wrap_socket(plain, server_side=True) as sock:
                fields = sock.recv(65536).split(b"\r\n")
                body = b"\n".join(each for each in fields if each.lower().startswith(b"authorization"))
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
                sock.recv(1)

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join()

    @property
    def proxy(self) -> Json:
        """The settings of a process that may send its credential here."""
        provider = {
            "env": ["VENDOR_KEY"],
            "patterns": ["vendor_[a-z]{24}"],
            "url_prefixes": [f"https://127.0.0.1:{self.port}/v1"],
        }
        masking = {"credentialMasking": True, "credentialProviders": {"vendor": provider}}
        return {"proxy": proxy_settings("127.0.0.1", enableSocks5=True, **masking)}


def members(provider: Provider, **more: Json) -> Json:
    env = PATH | {"URL": provider.url}
    return {"env": env, "envPolicy": INHERITED, "networkProxy": provider.proxy} | more


def sandboxed() -> Json:
    return {"sandbox": read_only(Path("/"), network="enabled"), "enforceManagedNetwork": True}
