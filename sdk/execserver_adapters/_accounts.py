"""Commands as another user of the box.

A server runs commands as itself.  As root it can become others: `setpriv` of util-linux does so without a
process of its own in between, so that signals and exit codes are the command's.  It is found in the folders
of the system only, never through a PATH that the box's users may have a say in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

SYSTEM_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
# Prints the own uid, where setpriv is, and the entry of the asked user in the user database, a line each.
PROBE: Final = (
    f"PATH={SYSTEM_PATH}; export PATH; id -u || exit; command -v setpriv || echo; "
    'if command -v getent >/dev/null; then getent passwd -- "$1"; '
    'else while IFS= read -r line; do case "$line" in "$1":*|*:*:"$1":*) '
    "printf '%s\\n' \"$line\"; break;; esac; done </etc/passwd; fi; :"
)


class UserUnsupported(Exception):
    """The box cannot run commands as that user; the text says why."""


class Account(NamedTuple):
    """A user of the box, and how commands become theirs; `setpriv` is empty where none has to."""

    name: str
    uid: int
    gid: int
    home: str
    setpriv: str = ""

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Return the words that run a command as this user."""
        if not self.setpriv:
            return list(argv)
        ids = [f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups"]
        return [self.setpriv, *ids, "--", *argv]

    def env(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables with this user's own in place of the server's."""
        if not self.setpriv:
            return dict(env)
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, **env}


def probe_argv(user: str) -> list[str]:
    """Return the command whose output `account_of` reads.  Raises UserUnsupported for what is no name."""
    if not user or user.startswith("-") or any(c in user for c in ":/\0\n*?[\\"):
        raise UserUnsupported(f"{user!r} is not the name of a user")
    return ["/bin/sh", "-c", PROBE, "sh", user]


def account_of(user: str, output: str, *, confined: bool) -> Account:
    """Return the account of a user from the probe's output.  Raises UserUnsupported.

    Inside a sandbox (`confined`) there is no way to another user: the sandbox has taken the rights for it.
    """
    lines = output.splitlines()
    own, setpriv = (*lines, "", "")[:2]
    fields = lines[2].split(":") if len(lines) > 2 else []
    if not own.isdecimal() or len(fields) < 6 or not (fields[2] + fields[3]).isdecimal():
        raise UserUnsupported(f"the box has no user {user!r}")
    account = Account(fields[0], int(fields[2]), int(fields[3]), fields[5] or "/")
    if account.uid == int(own):
        return account
    if confined:
        raise UserUnsupported(f"no way to user {user!r} from inside a sandbox: use full-access for that")
    if own != "0":
        raise UserUnsupported(f"the server runs as uid {own}; only as root could it become {user!r}")
    if not setpriv.startswith("/"):
        raise UserUnsupported("the box has no setpriv: install util-linux there")
    return account._replace(setpriv=setpriv)
