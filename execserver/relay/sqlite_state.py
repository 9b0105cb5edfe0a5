"""The relay state in a SQLite file: a restarted relay keeps its registrations.

One connection, autocommit, write-ahead log.  A step is one transaction.  It waits for the disk only when the
log is merged into the file: a power cut may cost the newest steps, never the file, and an executor whose
registration is lost registers again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from execserver.relay.errors import CannotServe
from execserver.relay.state import Grant, Granted, Outcome, Registration

_VERSION = 1
_BUSY_S = 5.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS registrations (
    environment_id TEXT PRIMARY KEY, registration_id TEXT NOT NULL, key TEXT NOT NULL,
    fingerprint BLOB NOT NULL, ticket BLOB NOT NULL, token_id TEXT NOT NULL, created REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS superseded (
    id INTEGER PRIMARY KEY, environment_id TEXT NOT NULL, fingerprint BLOB NOT NULL,
    UNIQUE (environment_id, fingerprint)
);
CREATE TABLE IF NOT EXISTS grants (
    id INTEGER PRIMARY KEY, environment_id TEXT NOT NULL, registration_id TEXT NOT NULL,
    fingerprint BLOB NOT NULL, ticket BLOB NOT NULL UNIQUE, authorization BLOB UNIQUE,
    token_id TEXT NOT NULL, expires REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS grants_of ON grants (environment_id, id);
CREATE INDEX IF NOT EXISTS grants_until ON grants (expires);
"""
_GRANT = (
    "environment_id, registration_id, fingerprint, ticket, coalesce(authorization, x''), token_id, expires"
)


class StateFileError(CannotServe):
    """The state file cannot be used; the text says why and names the file."""


P = ParamSpec("P")
R = TypeVar("R")


def _told(step: Callable[P, R]) -> Callable[P, R]:
    """Turn an error of SQLite (a full disk, say) into StateFileError."""

    @wraps(step)
    def tried(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return step(*args, **kwargs)
        except sqlite3.Error as error:
            raise StateFileError(f"the state file: {error}") from None

    return tried


def check(path: str) -> None:
    """Raise StateFileError for a file that `SqliteState` would not take; changes nothing in it."""
    try:
        db = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", timeout=_BUSY_S, uri=True)
        try:
            _check_version(db, path)
        finally:
            db.close()
    except (OSError, sqlite3.Error) as error:
        raise StateFileError(f"{path}: {error}") from None


class SqliteState:
    """A `RelayState` in a file of its own, readable by its owner only."""

    def __init__(self, path: str) -> None:
        """Open the file, created if missing.  Raises StateFileError."""
        try:
            # Created first because SQLite would create it with the umask's mode, readable by others.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
            self._prepare(path)
        except (OSError, sqlite3.Error) as error:
            raise StateFileError(f"{path}: {error}") from None

    @_told
    def register(self, registration: Registration, remembered: int) -> Outcome:
        """See `RelayState`."""
        name, fingerprint = registration.environment_id, registration.fingerprint
        with _Transaction(self._db):
            known = self._one(
                "SELECT 1 FROM superseded WHERE environment_id=? AND fingerprint=?", name, fingerprint
            )
            if known:
                return Outcome.SUPERSEDED
            before = self.registration(name)
            self._db.execute("REPLACE INTO registrations VALUES (?,?,?,?,?,?,?)", registration)
            if before is None:
                return Outcome.FIRST
            if before.fingerprint == fingerprint:
                return Outcome.AGAIN
            self._db.execute(
                "INSERT INTO superseded (environment_id, fingerprint) VALUES (?,?)",
                (name, before.fingerprint),
            )
            self._keep_newest("superseded", name, remembered)
        return Outcome.TAKEN_OVER

    @_told
    def registration(self, environment_id: str) -> Registration | None:
        """See `RelayState`."""
        row = self._one("SELECT * FROM registrations WHERE environment_id=?", environment_id)
        return None if row is None else Registration(*row)

    @_told
    def add_grant(self, grant: Grant, kept: int, now: float) -> None:
        """See `RelayState`."""
        with _Transaction(self._db):
            self._db.execute(
                "INSERT INTO grants (environment_id, registration_id, fingerprint, ticket, authorization,"
                " token_id, expires) VALUES (?,?,?,?,?,?,?)",
                grant,
            )
            self._keep_newest("grants", grant.environment_id, kept)

    @_told
    def grant_for_ticket(self, environment_id: str, ticket: bytes, now: float) -> Granted:
        """See `RelayState`."""
        where = "ticket=? AND environment_id=? AND expires>?"
        row = self._one(f"SELECT {_GRANT} FROM grants WHERE {where}", ticket, environment_id, now)
        return Granted(None if row is None else Grant(*row), self.registration(environment_id))

    @_told
    def take_authorization(self, environment_id: str, authorization: bytes, now: float) -> Granted:
        """See `RelayState`."""
        # The row stays, since the credential of the same grant is valid until it expires.
        with _Transaction(self._db):
            where = "authorization=? AND environment_id=?"
            row = self._one(f"SELECT {_GRANT} FROM grants WHERE {where}", authorization, environment_id)
            self._db.execute(
                f"UPDATE grants SET authorization=NULL WHERE {where}", (authorization, environment_id)
            )
        grant = None if row is None else Grant(*row)
        is_good = grant is not None and grant.expires > now
        return Granted(grant if is_good else None, self.registration(environment_id))

    @_told
    def expire(self, now: float) -> None:
        """See `RelayState`."""
        self._db.execute("DELETE FROM grants WHERE expires<=?", (now,))

    def close(self) -> None:
        """See `RelayState`."""
        self._db.close()

    def _prepare(self, path: str) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")  # no sync per step: a registry call costs 0.1 ms
        _check_version(self._db, path)
        self._db.executescript(_SCHEMA)
        self._db.execute(f"PRAGMA user_version={_VERSION}")

    def _one(self, query: str, *values: object) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._db.execute(query, values).fetchone()
        return row

    def _keep_newest(self, table: str, environment_id: str, count: int) -> None:
        self._db.execute(
            f"DELETE FROM {table} WHERE environment_id=? AND id NOT IN"
            f" (SELECT id FROM {table} WHERE environment_id=? ORDER BY id DESC LIMIT ?)",
            (environment_id, environment_id, count),
        )


def _check_version(db: sqlite3.Connection, path: str) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version not in (0, _VERSION):
        raise StateFileError(f"{path}: made by another version of execserver (its format is {version})")


class _Transaction:
    """One step: it begins with the write lock, so that nothing it has read changes before its end."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self._db.execute("COMMIT")
        elif self._db.in_transaction:
            self._db.execute("ROLLBACK")
