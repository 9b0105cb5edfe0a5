"""The file of certificates that a process with masking trusts: the system's, and its proxy's own.

It is in the folder where the contract has it, and readable for everybody: there is no secret in it.  A server
that ended without closing leaves its files behind; the lock on each tells whose are still in use.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress

from execserver.http_client.trust import KNOWN_BUNDLES

_FOLDER = b"proxy"
_PREFIX = b"ca-bundle-"
_UNFINISHED = b".ca-bundle-"
_UNFINISHED_S = 60.0
_OWN_FILES = (b"CODEX_CA_CERTIFICATE", b"SSL_CERT_FILE")


class CaBundle:
    """The file of one process; `fd` has the lock on it."""

    def __init__(self, path: bytes, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def new(cls, codex_home: bytes, certificates: bytes) -> CaBundle:
        """Write a file.  Raises OSError."""
        folder = os.path.join(codex_home, _FOLDER)
        os.makedirs(folder, 0o755, exist_ok=True)
        name = secrets.token_hex(32).encode() + b".pem"
        unfinished, path = os.path.join(folder, _UNFINISHED + name), os.path.join(folder, _PREFIX + name)
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            with suppress(OSError):  # some file systems know no locks
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.fchmod(fd, 0o644)  # whatever the umask: there is no secret in it
            with open(fd, "wb", closefd=False) as file:
                file.write(certificates)
            os.rename(unfinished, path)
        except BaseException:
            os.close(fd)
            with suppress(OSError):
                os.unlink(unfinished)
            raise
        return cls(path, fd)

    def close(self) -> None:
        """Remove the file; a second call does nothing."""
        if self.fd < 0:
            return
        with suppress(OSError):
            os.unlink(self.path)
        os.close(self.fd)
        self.fd = -1


def remove_stale(codex_home: bytes) -> None:
    """Remove the files that no server uses any longer."""
    folder = os.path.join(codex_home, _FOLDER)
    with suppress(OSError):
        for name in os.listdir(folder):
            if name.endswith(b".pem") and name.startswith((_PREFIX, _UNFINISHED)):
                _remove_unlocked(os.path.join(folder, name), in_progress=name.startswith(_UNFINISHED))


def _remove_unlocked(path: bytes, *, in_progress: bool) -> None:
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if in_progress and time.time() - os.fstat(fd).st_mtime < _UNFINISHED_S:
                return
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(fd)


def system_certificates(environ: Mapping[bytes, bytes]) -> bytes:
    """Return the certificates that programs of this machine trust, as `http_client.trust` finds them."""
    own = next((path for name in _OWN_FILES if (path := environ.get(name))), None)
    parts = [_content(own)] if own else []
    parts += next(([found] for bundle in KNOWN_BUNDLES if (found := _content(bundle.encode()))), [])
    return b"".join(part if part.endswith(b"\n") or not part else part + b"\n" for part in parts)


def _content(path: bytes) -> bytes:
    with suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""
