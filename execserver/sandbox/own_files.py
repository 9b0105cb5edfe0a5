"""Keeps the program files, mask records, the list of tokens and certificates out of a command's reach.

The next start of a server runs what was unpacked before, without a sandbox, mask records tell the next owner
what to remove, with the key in the list of tokens anybody makes tokens, and processes with masked
credentials trust whose certificates are in their folder.  A policy may make the folders that they are in
writable, for instance the one for temporary files.  Every folder that a later start could
take its program or its tokens from is closed, not only that of the running program: else a command could put
something there for an upgrade, or for a start with another environment.
"""

from __future__ import annotations

import errno
import os
from stat import S_IFLNK

from execserver.runtime_paths import (
    TOKEN_STORE_FILE,
    ExecServerRuntimePaths,
    certificate_folder,
    home_of_user,
    token_stores,
)
from execserver.sandbox.masks.records import record_places
from execserver.sandbox.plan import (
    HIDDEN_DIRECTORY,
    READ,
    ROOT_HOST,
    ROOT_READ_ONLY,
    ROOT_WRITABLE,
    WRITE,
    Mount,
    PlanRefused,
    SandboxPlan,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from execserver.sandbox.policy.host import Host

_TEMPORARY = (b"/tmp", b"/dev/shm", b"/var/tmp")
_ROOTS_OWN = (b"/dev", b"/proc")
_MOUNTABLE = b"/dev/shm"  # the only place there where something of the host's can be shown
# What this user cannot make, no command of this user can.
_NOT_TO_BE_MADE = (errno.EACCES, errno.EPERM, errno.EROFS)


def keep_own_files(
    plan: SandboxPlan, host: Host, environ: Mapping[bytes, bytes], hidden: tuple[bytes, ...] = ()
) -> SandboxPlan:
    """Return a plan that also masks mask records and tokens, with folders of the program and certificates
    read-only.

    Missing folders are made, so that nobody inside makes them first.  `environ` is the environment that this
    program was started with; `hidden` are further folders that nobody inside may see.  Raises OSError, and
    PlanRefused where certificates cannot be kept.
    """
    if plan.root == ROOT_HOST:
        return plan
    # Owners read the records in all of them, whichever they write to: a record that a command made in one
    # would count, and could keep mask targets on the host for ever.
    for folder in record_places(environ.get(b"XDG_RUNTIME_DIR")):
        if not _is_anothers(folder):
            plan = _with(plan, host, folder, HIDDEN_DIRECTORY)
    for folder in places_of_the_program(environ):
        plan = _with(plan, host, folder, READ)
    for folder in hidden:
        if _shows(plan, nearest := _nearest(plan, folder), folder):
            plan = _mounted(plan, host, nearest, folder, HIDDEN_DIRECTORY)
    for folder in token_stores(environ):
        if _is_within_reach(folder):
            plan = _without_tokens(plan, host, folder)
    return _with_certificates(plan, host, certificate_folder(environ))


def show_certificates(plan: SandboxPlan, host: Host, folder: bytes) -> SandboxPlan:
    """Return a plan in which a command can read the certificates in a folder, which is there.

    Raises PlanRefused where the policy denies them, and OSError.
    """
    if plan.root == ROOT_HOST:
        return plan
    nearest = _nearest(plan, folder)
    own = any(_is_below(folder, each) for each in _ROOTS_OWN) and not _is_below(folder, _MOUNTABLE)
    shown = _shows(plan, nearest, folder)
    denied = any(each.kind not in (READ, WRITE) and _is_below(each.path, folder) for each in plan.mounts)
    if own or denied or (not shown and nearest is not None):
        raise PlanRefused(
            f"masked credentials need certificates that the policy denies: {os.fsdecode(folder)}"
        )
    if shown:
        return plan
    fields = {name: getattr(plan, name) for name in plan.__slots__}
    fields["mounts"] = _inserted(plan.mounts, [Mount(READ, folder, folder, host.identity(folder))])
    fields["readable"] = tuple(sorted((*plan.readable, folder)))
    return SandboxPlan(**fields)


def places_of_the_program(environ: Mapping[bytes, bytes]) -> list[bytes]:
    """Return the folders that a start may unpack into (as launcher/cache.c does), with symlinks resolved.

    A variable that names one folder does not leave out the others: the next start may lack the variable.
    """
    own = b"/execserver-%d" % os.geteuid()
    temporary = (environ.get(b"TMPDIR", b""), *_TEMPORARY)
    homes = (environ.get(b"HOME", b""), home_of_user())
    named = [
        ExecServerRuntimePaths.unpacked_folder() or b"",
        environ.get(b"EXECSERVER_CACHE_DIR", b""),
        *(folder + b"/execserver" for folder in [environ.get(b"XDG_CACHE_HOME", b"")] if folder),
        *(folder + b"/.cache/execserver" for folder in homes if folder),
        *(folder + own for folder in temporary if folder),
    ]
    return list(dict.fromkeys(os.path.realpath(folder) for folder in named if folder.startswith(b"/")))


def _without_tokens(plan: SandboxPlan, host: Host, folder: bytes) -> SandboxPlan:
    """Mask a folder for tokens: where it would be writable in any case, where it is readable if it has any.

    An empty folder that a command filled would be the next server's list.
    """
    nearest = _nearest(plan, folder)
    if _shows(plan, nearest, folder) == READ and host.stamp(folder + b"/" + TOKEN_STORE_FILE) is not None:
        return _mounted(plan, host, nearest, folder, HIDDEN_DIRECTORY)
    return _with(plan, host, folder, HIDDEN_DIRECTORY)


def _with_certificates(plan: SandboxPlan, host: Host, folder: bytes) -> SandboxPlan:
    """Make the folder for certificates read-only where it would be writable; a symlink could be replaced."""
    if _shows(plan, _nearest(plan, folder), folder) == WRITE:
        _make(folder)  # before the first look, which `host` may remember
        found = host.identity(folder)
        if found is not None and found[2] == S_IFLNK:
            shown = os.fsdecode(folder)
            raise PlanRefused(
                f"{shown} is a symlink in a writable folder; remove it, or name another CODEX_HOME"
            )
    return _with(plan, host, folder, READ)


def _with(plan: SandboxPlan, host: Host, folder: bytes, kind: str) -> SandboxPlan:
    """Add a mount for a folder where it would be writable."""
    nearest = _nearest(plan, folder)
    if _shows(plan, nearest, folder) != WRITE:
        return plan
    _make(folder)
    return _mounted(plan, host, nearest, folder, kind)


def _nearest(plan: SandboxPlan, folder: bytes) -> Mount | None:
    above = [mount for mount in plan.mounts if _is_below(folder, mount.path)]
    return max(above, key=lambda mount: len(mount.path), default=None)


def _shows(plan: SandboxPlan, nearest: Mount | None, folder: bytes) -> str:
    """Return whether a folder can be seen, READ, and written, WRITE; nothing where it is not there."""
    if nearest is not None:
        return nearest.kind if nearest.kind in (READ, WRITE) else ""
    if any(_is_below(folder, own) for own in _ROOTS_OWN):
        return ""
    return {ROOT_WRITABLE: WRITE, ROOT_READ_ONLY: READ}.get(plan.root, "")


def _mounted(plan: SandboxPlan, host: Host, nearest: Mount | None, folder: bytes, kind: str) -> SandboxPlan:
    """Add a mount for a folder that the plan shows by its nearest mount; nothing where it is missing."""
    identity = host.identity(folder)
    if identity is None:
        return plan
    # The folders in between become mounts of their own; else they could be moved away with what is in them.
    way = []
    if _shows(plan, nearest, folder) == WRITE:
        way = [Mount(WRITE, path, path, host.identity(path)) for path in _between(nearest, folder)]
    last = Mount(kind, folder, folder if kind == READ else b"", identity)
    fields = {name: getattr(plan, name) for name in plan.__slots__}
    kept = "read_only" if kind == READ else "denied"
    fields["mounts"] = _inserted(plan.mounts, [*way, last])
    fields[kept] = (*fields[kept], folder)
    return SandboxPlan(**fields)


def _inserted(mounts: tuple[Mount, ...], added: list[Mount]) -> tuple[Mount, ...]:
    """Insert the mounts on the way to one folder, before any mount that they would cover."""
    top = added[0].path
    covered = (at for at, mount in enumerate(mounts) if mount.path != top and _is_below(mount.path, top))
    at = next(covered, len(mounts))
    return (*mounts[:at], *added, *mounts[at:])


def _is_anothers(path: bytes) -> bool:
    """Tell whether another user has taken a path: no owner believes it then, and no command can remove it."""
    try:
        return os.lstat(path).st_uid != os.geteuid()
    except OSError:
        return False


def _is_within_reach(folder: bytes) -> bool:
    """Tell whether this user, and so a command, could come to what is in a folder, or to its place."""
    try:
        os.lstat(folder + b"/" + TOKEN_STORE_FILE)
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def _make(folder: bytes) -> None:
    """Make a folder and those above it that are missing, unless this user cannot.  Raises OSError."""
    # A mount needs something to be mounted on.  The folders stay: mask targets would have to be recorded and
    # removed for each command.  Mode 0700, as a start that unpacks into them wants it.
    missing = []
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno in _NOT_TO_BE_MADE:
                return
            raise


def _between(nearest: Mount | None, folder: bytes) -> list[bytes]:
    """Return the folders between a mount and one below it, from the top; both left out."""
    start = b"/" if nearest is None else nearest.path
    found = []
    path = os.path.dirname(folder)
    while len(path) > len(start):
        found.append(path)
        path = os.path.dirname(path)
    return found[::-1]


def _is_below(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")
