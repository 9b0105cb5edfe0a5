"""What a command or a file request may do on the box: `Sandbox`, and the names that stand for the usual ones.

    await box.run(["make"], cwd="/src", sandbox="workspace-write")
    await box.run(["make"], cwd="/src", sandbox=Sandbox.workspace_write(roots=["/src"], network=True))

The box enforces it; if it cannot, the command does not run.  `box.sandbox_report()` says what a box can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from execserver.client.policies import FULL_ACCESS, READ_ONLY, WORKSPACE_WRITE, policy_context
from execserver.client.rules.wire import RemotePath, path_uri, sandbox_context
from execserver.protocol.paths import PathUri
from execserver.protocol.permissions import DENY, PATH, PermissionProfile, SandboxEntry
from execserver.protocol.sandbox import FileSystemSandboxContext

_KINDS = {
    "read-only": READ_ONLY,
    "workspace-write": WORKSPACE_WRITE,
    "full-access": FULL_ACCESS,
    "danger-full-access": FULL_ACCESS,  # as the contract and `execserver run` have it
}


class Sandbox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sandbox that does not know yet where it is used; made by one of the class methods.

    Equal ones compare equal.  Paths are absolute paths on the box.
    """

    _kind: str
    _roots: tuple[PathUri, ...] | None = None
    _readable: tuple[PathUri, ...] | None = None
    _network: bool = False
    _tmp: bool = True
    _hidden: tuple[PathUri, ...] = ()
    _context: FileSystemSandboxContext | None = None

    @classmethod
    def read_only(
        cls,
        *,
        readable: Iterable[RemotePath] | None = None,
        hidden: Iterable[RemotePath] = (),
        network: bool = False,
    ) -> Sandbox:
        """Return one that writes nothing; with `readable` it reads these folders and the system's only.

        `hidden`: files and folders that it can neither read nor write.  Raises `InvalidPath` for a relative
        path.
        """
        return cls(READ_ONLY, None, _paths(readable), network, _hidden=_paths(hidden) or ())

    @classmethod
    def workspace_write(
        cls,
        *,
        roots: Iterable[RemotePath] | None = None,
        readable: Iterable[RemotePath] | None = None,
        hidden: Iterable[RemotePath] = (),
        network: bool = False,
        tmp: bool = True,
    ) -> Sandbox:
        """Return one that writes below `roots` and, with `tmp`, below /tmp and TMPDIR.

        Without `roots` the folder in which the command starts is the only one.  `.git`, `.codex` and
        `.agents` at the top of a root stay read-only.  It reads everything, or with `readable` these folders,
        the roots and the system's.  `hidden`: files and folders that it can neither read nor write.  Raises
        `InvalidPath` for a relative path.
        """
        return cls(WORKSPACE_WRITE, _paths(roots), _paths(readable), network, tmp, _paths(hidden) or ())

    @classmethod
    def full_access(cls) -> Sandbox:
        """Return one that holds nothing back; a box that limits its clients still does."""
        return cls(FULL_ACCESS)

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Sandbox:
        """Return one from the contract's object, such as another program sends.

        Raises ValueError with the first bad member: what is not understood is refused, never left out.
        """
        return cls("", _context=sandbox_context(dict(value)))

    def context(self, cwd: RemotePath) -> FileSystemSandboxContext:
        """Return the contract's object for a command or request in `cwd`."""
        if self._context is not None:
            return self._context
        wanted = policy_context(
            self._kind,
            path_uri(cwd),
            roots=self._roots,
            network=self._network,
            readable=self._readable,
            tmp=self._tmp,
        )
        found = sandbox_context(wanted)
        assert found is not None
        if self._hidden:
            granted = found.permissions
            entries = [*(granted.entries or ()), *(SandboxEntry(PATH, DENY, path) for path in self._hidden)]
            found.permissions = PermissionProfile(granted.kind, granted.network_enabled, tuple(entries))
        return found


AnySandbox: TypeAlias = Sandbox | FileSystemSandboxContext | str | Mapping[str, object] | None
"""What every `sandbox=` takes: a `Sandbox`, one of the names `read-only`, `workspace-write` and `full-access`
(with the folder of the command as its root), the contract's object, or None for no sandbox."""


def context_of(sandbox: AnySandbox, cwd: RemotePath) -> FileSystemSandboxContext | None:
    """Return what is sent for a `sandbox=`.  Raises ValueError for what is none; never falls back to none."""
    if sandbox is None or isinstance(sandbox, FileSystemSandboxContext):
        return sandbox
    if isinstance(sandbox, str):
        if sandbox not in _KINDS:
            names = ", ".join(name for name in _KINDS if name != FULL_ACCESS)
            raise ValueError(f"not a sandbox: {sandbox!r}; the names are {names}")
        sandbox = Sandbox(_KINDS[sandbox])
    if isinstance(sandbox, Sandbox):
        return sandbox.context(cwd)
    if not isinstance(sandbox, Mapping):
        raise ValueError(f"not a sandbox: {type(sandbox).__name__}")
    return Sandbox.from_json(sandbox).context(cwd)


def _paths(paths: Iterable[RemotePath] | None) -> tuple[PathUri, ...] | None:
    if paths is None:
        return None
    if isinstance(paths, str | bytes):
        raise ValueError(f"a list of folders is wanted, not one path: [{paths!r}]")
    return tuple(path_uri(path) for path in paths)
