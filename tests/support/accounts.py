"""Whose account the tests run in; there may be none, as for a user of a container."""

from __future__ import annotations

import os
import pwd


def account() -> pwd.struct_passwd | None:
    """Return the entry of the user who runs the tests, or None without one."""
    try:
        return pwd.getpwuid(os.geteuid())
    except KeyError:
        return None


def account_home() -> str | None:
    """Return the home folder in that entry."""
    entry = account()
    return entry.pw_dir if entry else None


def home() -> str:
    """Return the home folder that a server takes for its user's, whether a variable names it or not."""
    return os.environ.get("HOME") or account_home() or "/"


def account_shell() -> str | None:
    """Return the shell in that entry, which may be empty."""
    entry = account()
    return entry.pw_shell if entry else None


def own_cache() -> dict[str, str]:
    """Return the variable by which the built file, in a home of a test's own, finds itself unpacked already.

    There it would write some 50 MB, and with `syncfs` all that anybody has not written yet: seconds on a busy
    machine, for each test.  Another user falls back to places of its own.
    """
    return {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or f"{home()}/.cache"}
