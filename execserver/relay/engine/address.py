"""The engine's URL and credentials, as the command line names them.

A password never stands in the command line, where every user of the machine could read it: it comes from a
file.  What is wrong is told without repeating the URL, which may hold one all the same.
"""

from __future__ import annotations

import os
import re
import stat
from typing import NamedTuple

from execserver.protocol.errors import os_error_text
from execserver.relay.errors import CannotServe

_PORT, _SENTINEL_PORT = 6379, 26379
_MAX_HOSTS = 16
_MAX_CREDENTIAL_BYTES = 4096
_KINDS = {
    "redis": (False, False),
    "rediss": (True, False),
    "redis+sentinel": (False, True),
    "rediss+sentinel": (True, True),
}
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::(\d{1,5}))?")
_MASTER = re.compile(r"[A-Za-z0-9._-]{1,64}")
_EXPECTED = (
    "expected redis://HOST[:PORT][/DB], rediss://... or redis+sentinel://HOST:PORT,HOST:PORT/MASTER[/DB]"
)


class EngineAddress(NamedTuple):
    """Where the engine is: its host, or the sentinels that know it by the name `master`."""

    tls: bool
    hosts: tuple[tuple[str, int], ...]
    master: str | None = None
    database: int = 0

    @property
    def shown(self) -> str:
        """The URL, as it may be shown."""
        scheme = ("rediss" if self.tls else "redis") + ("+sentinel" if self.master else "")
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        path = "".join(f"/{part}" for part in (self.master, self.database or None) if part)
        return f"{scheme}://{hosts}{path}"


class Credentials(NamedTuple):
    """Who we are to the engine; without a password nobody signs in."""

    user: str = ""
    password: str = ""


def address_of(url: str) -> EngineAddress:
    """Read a URL.  Raises CannotServe."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _KINDS:
        raise _invalid()
    if "@" in rest:
        raise CannotServe(
            "--engine: a user or password in a URL can be read by everybody on this machine; "
            "put USER:PASSWORD into a file of mode 0600 and name it with --engine-auth"
        )
    tls, by_sentinel = _KINDS[scheme]
    names, *path = rest.split("/")
    master = path.pop(0) if by_sentinel and path else None
    if by_sentinel and (master is None or not _MASTER.fullmatch(master)):
        raise _invalid()
    database = path.pop(0) if path else ""
    if path or not re.fullmatch(r"\d{0,4}", database):
        raise _invalid()
    hosts = tuple(_host(name, _SENTINEL_PORT if by_sentinel else _PORT) for name in names.split(","))
    if len(hosts) > (_MAX_HOSTS if by_sentinel else 1):
        raise _invalid()
    return EngineAddress(tls, hosts, master, int(database or 0))


def credentials_in(path: str) -> Credentials:
    """Read a file of one line, `USER:PASSWORD` or `:PASSWORD`.  Raises CannotServe."""
    try:
        with open(path, "rb") as file:
            # Asked of the descriptor, so it is the file that is read.
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise CannotServe(f"{path}: others may read or write it; make it yours: chmod 600 {path}")
            data = file.read(_MAX_CREDENTIAL_BYTES + 1)
    except OSError as error:
        raise CannotServe(f"{path}: {os_error_text(error.errno or 0)}") from None
    try:
        user, separator, password = data.decode().strip("\r\n").partition(":")
    except ValueError:
        separator = password = ""
    if not separator or not password or len(data) > _MAX_CREDENTIAL_BYTES or "\n" in password:
        raise CannotServe(f"{path}: expected one line, USER:PASSWORD or :PASSWORD")
    return Credentials(user, password)


def _host(text: str, default_port: int) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    port = int(found[3] or default_port) if found else 0
    if found is None or not 0 < port < 65536:
        raise _invalid()
    return found[1] or found[2], port


def _invalid() -> CannotServe:
    return CannotServe(f"invalid --engine URL; {_EXPECTED}")
