"""Keeping this program's own files out of reach: whoever changed them inside would act outside.

What is unpacked is started again, unconfined, by the next server; records of placeholders tell the next owner
what to remove.  A policy may make the folders they lie in writable, for instance the one for temporary files.
Each folder a later start could take itself from is closed, not only that of the running program: else a
command would put a program there for an upgrade, or for a start with another environment.
"""

from __future__ import annotations

import errno
import os

from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.sandbox.placeholder_records import record_places
from execserver.sandbox.plan import HIDDEN_DIRECTORY, READ, ROOT_HOST, ROOT_WRITABLE, WRITE, Mount, ViewPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from execserver.sandbox.host import Host

_TEMPORARY = (b"/tmp", b"/dev/shm", b"/var/tmp")
_VIEWS_OWN = (b"/dev", b"/proc")
# What this user cannot make, no command of this user can.
_NOT_TO_BE_MADE = (errno.EACCES, errno.EPERM, errno.EROFS)

_home: list[bytes] = []  # of this user as the system knows it, once it was looked up


def keep_own_files(plan: ViewPlan, host: Host, environ: Mapping[bytes, bytes]) -> ViewPlan:
    """Return a plan that also hides the records and keeps the places of the unpacked program as they are.

    Folders of them are made if need be: nobody inside shall make them first.  `environ` is the environment
    this program was started with.  Raises OSError.
    """
    if plan.root == ROOT_HOST:
        return plan
    # All of them are read, whichever this server writes to: a note that a command made there would count.
    for folder in record_places(environ.get(b"XDG_RUNTIME_DIR")):
        if not _is_anothers(folder):
            plan = _with(plan, host, folder, HIDDEN_DIRECTORY)
    for folder in places_of_the_program(environ):
        plan = _with(plan, host, folder, READ)
    return plan


def places_of_the_program(environ: Mapping[bytes, bytes]) -> list[bytes]:
    """Return the folders that a start may unpack into (launcher/cache.c), free of links.

    What a variable names instead of the others does not hide them here: the next start may lack it.
    """
    own = b"/execserver-%d" % os.geteuid()
    temporary = (environ.get(b"TMPDIR", b""), *_TEMPORARY)
    homes = (environ.get(b"HOME", b""), _home_of_user())
    named = [
        ExecServerRuntimePaths.unpacked_folder() or b"",
        environ.get(b"EXECSERVER_CACHE_DIR", b""),
        *(folder + b"/execserver" for folder in [environ.get(b"XDG_CACHE_HOME", b"")] if folder),
        *(folder + b"/.cache/execserver" for folder in homes if folder),
        *(folder + own for folder in temporary if folder),
    ]
    return list(dict.fromkeys(os.path.realpath(folder) for folder in named if folder.startswith(b"/")))


def _home_of_user() -> bytes:
    """Return this user's home as the system knows it, or b"": HOME may say something else next time."""
    if not _home:
        import pwd  # late: a few plans only get here

        try:
            _home.append(os.fsencode(pwd.getpwuid(os.geteuid()).pw_dir))
        except KeyError:
            _home.append(b"")
    return _home[0]


def _with(plan: ViewPlan, host: Host, folder: bytes, kind: str) -> ViewPlan:
    """Add a mount for a folder where it would be writable."""
    above = [mount for mount in plan.mounts if _is_below(folder, mount.path)]
    nearest = max(above, key=lambda mount: len(mount.path), default=None)
    if nearest is None:
        writable = plan.root == ROOT_WRITABLE and not any(_is_below(folder, own) for own in _VIEWS_OWN)
    else:
        writable = nearest.kind == WRITE
    if not writable:
        return plan
    _make(folder)
    identity = host.identity(folder)
    if identity is None:
        return plan
    # A folder on the way could be moved away with what lies in it, were it no mount of its own.
    way = [Mount(WRITE, path, path, host.identity(path)) for path in _between(nearest, folder)]
    last = Mount(kind, folder, folder if kind == READ else b"", identity)
    fields = {name: getattr(plan, name) for name in plan.__slots__}
    kept = "read_only" if kind == READ else "denied"
    fields["mounts"] = _inserted(plan.mounts, [*way, last])
    fields[kept] = (*fields[kept], folder)
    return ViewPlan(**fields)


def _inserted(mounts: tuple[Mount, ...], added: list[Mount]) -> tuple[Mount, ...]:
    """Return mounts with some more of one path, before those that they would cover."""
    top = added[0].path
    covered = (at for at, mount in enumerate(mounts) if mount.path != top and _is_below(mount.path, top))
    at = next(covered, len(mounts))
    return (*mounts[:at], *added, *mounts[at:])


def _is_anothers(path: bytes) -> bool:
    """Tell whether another user has taken a path: nothing there is believed, and no command can remove it."""
    try:
        return os.lstat(path).st_uid != os.geteuid()
    except OSError:
        return False


def _make(folder: bytes) -> None:
    """Make a folder and those above it that are missing, unless this user cannot.  Raises OSError."""
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
