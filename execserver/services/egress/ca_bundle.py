"""The file of certificates that a process with masking trusts: the system's, and its proxy's own.

It is in the folder where the contract has it, and readable for everybody: there is no secret in it.  The
folder must be a private one (`certificate_folder`); files in it are reached by its descriptor.  A server
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
from execserver.sandbox.certificate_folder import FolderRefused, opened

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
    def new(cls, folder: bytes, certificates: bytes) -> CaBundle:
        """Write a file in the folder.  Raises FolderRefused and OSError."""
        above = opened(folder)
        try:
            name = _PREFIX + secrets.token_hex(32).encode() + b".pem"
            return cls(os.path.join(folder, name), _written(above, name, certificates))
        finally:
            os.close(above)

    def close(self) -> None:
        """Remove the file; a second call does nothing."""
        if self.fd < 0:
            return
        folder, name = os.path.split(self.path)
        with suppress(OSError, FolderRefused):
            above = opened(folder, make=False)
            try:
                os.unlink(name, dir_fd=above)
            finally:
                os.close(above)
        os.close(self.fd)
        self.fd = -1


def _written(above: int, name: bytes, certificates: bytes) -> int:
    """Write a file, which has its name once it is whole; return what has the lock on it.  Raises OSError."""
    unfinished = b"." + name
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(unfinished, flags, 0o644, dir_fd=above)
    try:
        with suppress(OSError):  # some file systems know no locks
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.fchmod(fd, 0o644)  # whatever the umask: there is no secret in it
        with open(fd, "wb", closefd=False) as file:
            file.write(certificates)
        os.rename(unfinished, name, src_dir_fd=above, dst_dir_fd=above)
    except BaseException:
        os.close(fd)
        with suppress(OSError):
            os.unlink(unfinished, dir_fd=above)
        raise
    return fd


def remove_stale(folder: bytes) -> None:
    """Remove the files that no server uses any longer."""
    with suppress(OSError, FolderRefused):
        above = opened(folder, make=False)
        try:
            for name in map(os.fsencode, os.listdir(above)):
                if name.endswith(b".pem") and name.startswith((_PREFIX, _UNFINISHED)):
                    _remove_unlocked(above, name, in_progress=name.startswith(_UNFINISHED))
        finally:
            os.close(above)


def _remove_unlocked(above: int, name: bytes, *, in_progress: bool) -> None:
    with suppress(OSError):
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=above)
        try:
            if in_progress and time.time() - os.fstat(fd).st_mtime < _UNFINISHED_S:
                return
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name, dir_fd=above)
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
