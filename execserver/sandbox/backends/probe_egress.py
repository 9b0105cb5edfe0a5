"""Probes what network proxies need of this machine, and what credential masking needs besides.

The server asks as well: it announces masking only where all of it holds, and starts nothing masked elsewhere.
"""

from __future__ import annotations

import os
import socket

from execserver.runtime_paths import certificate_folder
from execserver.sandbox.backends.report import Check
from execserver.sandbox.certificate_folder import FolderRefused, opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PROXY = "network-proxy"
MASKING = "masking"

_SECONDS = 2.0
_TABLE = "/proc/net/tcp"
_NETLINK_SOCK_DIAG = 4


class _Lacking(Exception):
    """What does not work, and the remedy."""


def check_egress(environ: Mapping[bytes, bytes]) -> tuple[Check, Check]:
    """Return whether processes can have network proxies, and masked credentials."""
    proxy = _checked(PROXY, _serves_loopback, "HTTP and SOCKS5 on 127.0.0.1")
    if not proxy.works:
        return proxy, Check(MASKING, False, "", "it needs network proxies", proxy.cure)
    return proxy, check_masking(environ)


def check_masking(environ: Mapping[bytes, bytes]) -> Check:
    """Return whether a server with this environment can mask credentials; makes nothing."""
    folder = certificate_folder(environ)

    def masks() -> None:
        _keeps_keys_in_memory()
        _takes_certificates(folder)

    return _checked(MASKING, masks, f"certificates in {os.fsdecode(folder)}")


def _checked(name: str, act: Callable[[], None], detail: str) -> Check:
    try:
        act()
    except _Lacking as lacking:
        return Check(name, False, "", *lacking.args)
    return Check(name, True, detail)


def _serves_loopback() -> None:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), _SECONDS).close()
    except OSError as error:
        raise _Lacking(
            f"no connection over 127.0.0.1: {error.strerror or error}",
            "bring the loopback interface up (ip link set lo up)",
        ) from None
    if not os.access(_TABLE, os.R_OK) and not _has_netlink():
        raise _Lacking("the kernel does not tell who connects", "allow netlink (sock_diag), or mount /proc")


def _has_netlink() -> bool:
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG).close()
    except OSError:
        return False
    return True


def _keeps_keys_in_memory() -> None:
    # OpenSSL reads a key from a file, which has a name in /proc only.
    try:
        fd = os.memfd_create("execserver-probe", os.MFD_CLOEXEC)
    except OSError as error:
        raise _Lacking(
            f"memory files are refused (memfd_create): {error.strerror}", "allow memfd_create"
        ) from None
    try:
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        why = f"no file can be opened through /proc/self/fd: {error.strerror}"
        raise _Lacking(why, "mount /proc where the server runs") from None
    finally:
        os.close(fd)


def _takes_certificates(folder: bytes) -> None:
    try:
        fd = opened(folder, make=False)
    except FolderRefused as refused:
        cure = "make CODEX_HOME and its folder proxy this user's own, and no symlinks"
        raise _Lacking(str(refused), cure) from None
    except FileNotFoundError:
        place = os.path.dirname(folder)
        while not os.path.lexists(place):
            place = os.path.dirname(place)
    except OSError as error:
        why = f"{os.fsdecode(folder)} cannot be opened: {error.strerror}"
        raise _Lacking(why, "name another folder in CODEX_HOME") from None
    else:
        os.close(fd)
        place = folder
    if not os.path.isdir(place) or not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
        why = f"{os.fsdecode(place)} is no folder that this user may write to"
        raise _Lacking(why, "name a folder of this user in CODEX_HOME")
