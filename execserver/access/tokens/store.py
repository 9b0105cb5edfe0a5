"""The server's list of tokens: one file with the key and what was issued, readable by its user only.

The file is replaced as a whole under a lock on its folder, so a reader sees the old file or the new one, and
two concurrent changes are both kept.  Nobody waits longer than `_LOCK_S` for the lock.  Anything doubtful
about folder or file (another owner, open modes, unknown content) is an error, never an empty list.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from execserver.access.tokens.caveats import Restrictions, restricted
from execserver.access.tokens.chain import KEY_BYTES, TOKEN_ID, Token, minted
from execserver.private_file import replace_with_json
from execserver.protocol.errors import os_error_text
from execserver.runtime_paths import TOKEN_STORE_FILE, TOKEN_STORE_VARIABLE, token_stores

MAX_TOKENS = 10_000  # in the list; those that are over make room first

_VERSION = 1
_MAX_FILE_BYTES = 64 * 1024 * 1024
_LOCK_S = 10.0
_LOCK_PAUSE_S = 0.02
_OTHERS = 0o077


class TokenStoreError(Exception):
    """The list of tokens cannot be used; the text says why and names the file."""


class Issued(NamedTuple):
    """One token of the list, without its secret; times in Unix seconds."""

    id: str
    caveats: tuple[str, ...]
    created: int
    revoked: int | None = None

    @property
    def restrictions(self) -> Restrictions:
        """What it could not do from the beginning."""
        return restricted(self.caveats)

    def over(self, now: float) -> bool:
        """Tell whether it is of no use any more."""
        return self.revoked is not None or self.restrictions.expired(now)


class Listed(NamedTuple):
    """The content of the file."""

    key: bytes
    tokens: dict[str, Issued]

    def __repr__(self) -> str:
        return f"Listed({len(self.tokens)} tokens)"  # without the key


def default_folder(environ: Mapping[bytes, bytes]) -> bytes:
    """Return the folder of this user's list.  Raises TokenStoreError if there is no place for one."""
    named = environ.get(TOKEN_STORE_VARIABLE.encode(), b"")
    if named and not named.startswith(b"/"):
        raise TokenStoreError(f"{TOKEN_STORE_VARIABLE} is not an absolute path: {_shown(named)}")
    folders = token_stores(environ)
    if not folders:
        raise TokenStoreError("there is no place for tokens: set HOME, or EXECSERVER_TOKEN_STORE to a folder")
    return folders[0]


def issue(folder: bytes, caveats: tuple[str, ...], now: float) -> Token:
    """Add a token to the list, created if missing.  Raises TokenStoreError, and BadCaveat."""
    token_id = secrets.token_hex(8)
    with _changing(folder) as listed:
        _make_room(listed.tokens, folder, now)
        token = minted(listed.key, token_id, caveats)
        listed.tokens[token_id] = Issued(token_id, token.caveats, int(now))
    return token


def revoke(folder: bytes, token_id: str, now: float) -> bool:
    """Revoke a token, with everything narrowed from it; return whether it was there and valid.

    Raises TokenStoreError.
    """
    read(folder)  # a list is not made to revoke something of it
    with _changing(folder) as listed:
        token = listed.tokens.get(token_id)
        if token is None or token.revoked is not None:
            return False
        listed.tokens[token_id] = token._replace(revoked=int(now))
    return True


def read(folder: bytes) -> Listed:
    """Return the list.  Raises TokenStoreError, also for one that others could read or have written."""
    path = folder + b"/" + TOKEN_STORE_FILE
    try:
        _check_folder(folder)
        # It closes what it cannot use, a directory for example.
        file = open(os.fsdecode(path), "rb", opener=_as_it_is)  # noqa: SIM115 - closed by the with below
    except FileNotFoundError as error:
        hint = "make a first token: execserver token new"
        raise TokenStoreError(f"{_failed(path, error)}; {hint}") from None
    except OSError as error:
        raise _failed(path, error) from None
    with file:
        facts = os.fstat(file.fileno())  # asked of the descriptor, so it is the file that is read
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & _OTHERS:
            raise TokenStoreError(f"{_shown(path)}: others can come to it; make it yours: chmod 600")
        data = file.read(_MAX_FILE_BYTES + 1)
    return _parsed(path, data)


def _as_it_is(path: str, flags: int) -> int:
    """Open no other file through a symlink, and wait for nobody where a FIFO lies."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _parsed(path: bytes, data: bytes) -> Listed:
    try:
        if len(data) > _MAX_FILE_BYTES:
            raise ValueError("too long")
        content = json.loads(data)
        key = bytes.fromhex(content["key"])
        if content["version"] != _VERSION or len(key) != KEY_BYTES:
            raise ValueError("another version")
        tokens = [_issued(entry) for entry in content["tokens"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        # Without the text of the error: it may hold what was in the file.
        raise TokenStoreError(f"{_shown(path)}: not a list of tokens ({type(error).__name__})") from None
    return Listed(key, {token.id: token for token in tokens})


def _issued(entry: Mapping[str, object]) -> Issued:
    token_id, caveats, created, revoked = (entry[name] for name in ("id", "caveats", "created", "revoked"))
    if not (isinstance(token_id, str) and TOKEN_ID.fullmatch(token_id) and isinstance(created, int)):
        raise TypeError
    if not (isinstance(caveats, list) and (revoked is None or isinstance(revoked, int))):
        raise TypeError
    restricted(caveats)
    return Issued(token_id, tuple(caveats), created, revoked)


def _make_room(tokens: dict[str, Issued], folder: bytes, now: float) -> None:
    """Forget tokens that are over, if the list is full: an unknown token is as good as a revoked one."""
    if len(tokens) < MAX_TOKENS:
        return
    for token in [token for token in tokens.values() if token.over(now)]:
        del tokens[token.id]
    if len(tokens) >= MAX_TOKENS:
        raise TokenStoreError(f"{_shown(folder)}: there are {MAX_TOKENS:,} valid tokens; revoke some")


@contextmanager
def _changing(folder: bytes) -> Iterator[Listed]:
    """Yield the list, to be changed in place, and write it back.  Makes folder, key and file if missing."""
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise _failed(folder, error) from None
    try:
        _check_folder(folder)
        _take(lock, folder)
        path = folder + b"/" + TOKEN_STORE_FILE
        listed = read(folder) if os.path.lexists(path) else Listed(secrets.token_bytes(KEY_BYTES), {})
        before = dict(listed.tokens)
        yield listed
        if listed.tokens != before:
            _write(path, listed)
            os.fsync(lock)  # the folder itself, so that the rename survives a power cut, too
    except OSError as error:
        raise _failed(folder, error) from None
    finally:
        os.close(lock)


def _check_folder(folder: bytes) -> None:
    """Refuse a folder that others can enter: they could put a list of their own there.  Raises OSError."""
    facts = os.lstat(folder)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & _OTHERS:
        raise TokenStoreError(f"{_shown(folder)}: others can come to it; make it yours: chmod 700")


def _take(lock: int, folder: bytes) -> None:
    """Lock the folder: a lock on the file would be lost with the file that the rename replaces."""
    deadline = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TokenStoreError(f"{_shown(folder)}: another program holds its lock") from None
        time.sleep(_LOCK_PAUSE_S)


def _write(path: bytes, listed: Listed) -> None:
    entries = [token._asdict() for token in listed.tokens.values()]
    replace_with_json(os.fsdecode(path), {"version": _VERSION, "key": listed.key.hex(), "tokens": entries})


def _failed(path: bytes, error: OSError) -> TokenStoreError:
    return TokenStoreError(f"{_shown(path)}: {os_error_text(error.errno or 0)}")


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "replace")
