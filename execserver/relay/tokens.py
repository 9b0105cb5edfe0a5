"""Who may use the relay: a file of tokens, each for one environment and a role, stored as hashes only.

A token is `esr-ID-SECRET` with 256 random bits, so a plain SHA-256 of it can be stored: nobody can guess it.
The file is replaced as a whole under a lock on its folder, so a reader sees the old file or the new one, and
two concurrent changes are both kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from execserver.private_file import replace_with_json
from execserver.protocol.errors import os_error_text
from execserver.relay.errors import CannotServe

EXECUTOR, HARNESS, BOTH = "executor", "harness", "both"
ROLES = (EXECUTOR, HARNESS, BOTH)
ENVIRONMENT_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

_TOKEN = re.compile(r"esr-([0-9a-f]{12})-[A-Za-z0-9_-]{43}")
NOBODY = bytes(32)  # no token has this digest
_MAX_FILE_BYTES = 16 * 1024 * 1024


class TokenFileError(CannotServe):
    """The token file cannot be used; the text says why and names the file."""


class Token(NamedTuple):
    """One entry of the file; `digest` is the SHA-256 of the whole token text."""

    id: str
    environment_id: str
    role: str
    digest: bytes
    created: str

    def allows(self, role: str) -> bool:
        """True if the token may be used for a role."""
        return self.role in (role, BOTH)


def default_token_file(environment: Mapping[str, str]) -> str:
    """Return the default path of this user's token file."""
    home = environment.get("XDG_CONFIG_HOME") or os.path.join(environment.get("HOME") or "/root", ".config")
    return os.path.join(home, "execserver", "relay-tokens.json")


class Tokens(Protocol):
    """Who may use the relay, wherever that is kept."""

    def find(self, text: str) -> Token | None:
        """Return the token of this text, or None; a wrong secret takes as long as an unknown id."""

    def holds(self, token_id: str) -> bool:
        """True while a token is valid."""

    def revoked(self, token_ids: Iterable[str]) -> set[str]:
        """Return those of some tokens that are not valid any more."""


def new_token(environment_id: str, role: str) -> tuple[Token, str]:
    """Return a new token and its text, which is stored nowhere.  Raises ValueError."""
    if not ENVIRONMENT_ID.fullmatch(environment_id):
        raise ValueError("an environment id consists of 1 to 128 letters, digits, `_` and `-`")
    if role not in ROLES:
        raise ValueError(f"a role is one of {', '.join(ROLES)}")
    token_id = secrets.token_hex(6)
    text = f"esr-{token_id}-{secrets.token_urlsafe(32)}"
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Token(token_id, environment_id, role, digest_of(text), created), text


def token_id_in(text: str) -> str | None:
    """Return the id that a token's text names; None if it is no such text."""
    match = _TOKEN.fullmatch(text)
    return match[1] if match else None


def create(path: str, environment_id: str, role: str) -> tuple[Token, str]:
    """Add a token to the file, created if missing; return it and its text, which is not stored.

    Raises TokenFileError, and ValueError for an invalid environment id or role.
    """
    token, text = new_token(environment_id, role)
    with _changing(path) as tokens:
        tokens.append(token)
    return token, text


def revoke(path: str, token_id: str) -> bool:
    """Remove a token by its id; return whether it was there.  Raises TokenFileError."""
    with _changing(path) as tokens:
        left = [token for token in tokens if token.id != token_id]
        found = len(left) < len(tokens)
        tokens[:] = left
    return found


def read(path: str) -> list[Token]:
    """Return the tokens of a file.

    Raises TokenFileError, also for a file that anyone but this user and root could have written.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below, and by itself where it is a directory
    except FileNotFoundError as error:
        hint = "make a first token: execserver relay token create --environment-id ID"
        raise TokenFileError(f"{_failed(path, error)}; {hint}") from None
    except OSError as error:
        raise _failed(path, error) from None
    with file:
        # Asked of the descriptor, so it is the file that is read; anyone who can write it can add a token.
        facts = os.fstat(file.fileno())
        if facts.st_uid not in (os.geteuid(), 0) or facts.st_mode & 0o022:
            raise TokenFileError(f"{path}: somebody else may write to it; make it yours: chmod 600 {path}")
        data = file.read(_MAX_FILE_BYTES)
    try:
        entries = json.loads(data)["tokens"]
        return [
            Token(
                each["id"],
                each["environment_id"],
                each["role"],
                bytes.fromhex(each["sha256"]),
                each["created"],
            )
            for each in entries
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise TokenFileError(f"{path}: not a token file ({type(error).__name__}: {error})") from None


def digest_of(text: str) -> bytes:
    """Return what is stored in place of a secret text."""
    return hashlib.sha256(text.encode()).digest()


class TokenBook:
    """The tokens of a running relay, read again when the file has changed."""

    def __init__(self, path: str) -> None:
        """Read the file; raises TokenFileError."""
        self._path = path
        self._stamp = _stamp(path)
        self._tokens = {token.id: token for token in read(path)}

    def __len__(self) -> int:
        return len(self._tokens)

    def find(self, text: str) -> Token | None:
        """Return the token of this text, or None; a wrong secret takes as long as an unknown id."""
        token = self._tokens.get(token_id_in(text) or "")
        same = hmac.compare_digest(token.digest if token else NOBODY, digest_of(text))
        return token if same else None

    def holds(self, token_id: str) -> bool:
        """True while a token is in the file."""
        return token_id in self._tokens

    def revoked(self, token_ids: Iterable[str]) -> set[str]:
        """See `Tokens`."""
        return {token_id for token_id in token_ids if token_id not in self._tokens}

    def reload(self, *, changed_only: bool = False) -> bool:
        """Read the file again, with `changed_only` only if it has changed; return whether it was read.

        Raises TokenFileError; then the tokens stay as they were, and the same broken file is reported once.
        """
        stamp = _stamp(self._path)
        if changed_only and stamp == self._stamp:
            return False
        self._stamp = stamp
        self._tokens = {token.id: token for token in read(self._path)}
        return True


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


@contextmanager
def _changing(path: str) -> Iterator[list[Token]]:
    """Yield the tokens as a list to change, and write it back."""
    path = os.path.realpath(path)
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _failed(folder, error) from None
    try:
        # On the folder: a lock on the file would be lost with the file that the rename replaces.
        fcntl.flock(lock, fcntl.LOCK_EX)
        tokens = read(path) if os.path.lexists(path) else []
        yield tokens
        _write(path, tokens)
        os.fsync(lock)  # the folder itself, so that the rename survives a power cut, too
    except OSError as error:
        raise _failed(path, error) from None
    finally:
        os.close(lock)


def _write(path: str, tokens: list[Token]) -> None:
    entries = [
        {
            "id": token.id,
            "environment_id": token.environment_id,
            "role": token.role,
            "sha256": token.digest.hex(),
            "created": token.created,
        }
        for token in tokens
    ]
    replace_with_json(path, {"tokens": entries})


def _failed(path: str, error: OSError) -> TokenFileError:
    return TokenFileError(f"{path}: {os_error_text(error.errno or 0)}")
