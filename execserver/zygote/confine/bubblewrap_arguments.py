"""The arguments of one bubblewrap, with all that it takes by descriptor, and the program to execute.

The last step before a command is the Landlock stage (`sandbox/backends/stage.py`): it applies the Landlock
rules under which bubblewrap could not have mounted.
"""

from __future__ import annotations

import errno
import os

from execserver.sandbox.backends import bwrap
from execserver.sandbox.backends.stage import Stage, reserve
from execserver.sandbox.identity import check_identity
from execserver.sandbox.kernel import landlock, mounts, seccomp
from execserver.sandbox.kernel.mounts import NewMounts
from execserver.sandbox.kernel.mounts_old import OldMounts
from execserver.sandbox.plan import FILTER_NONE, READ, WRITE
from execserver.sandbox.rootfs import landlock_rules
from execserver.zygote.confine.child import REPORT
from execserver.zygote.confine.workdir import real_workdir
from execserver.zygote.lookup import env_value, pipe_candidates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.sandbox.backends.bwrap import Bwrap
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import Mount, SandboxPlan
    from execserver.zygote.confine.command import Command
    from execserver.zygote.confine.held_start import HeldStart


class Wrapper:
    """One use of bubblewrap in a forked child; opens what it needs on inheritable descriptors."""

    def __init__(self, kernel: Kernel, program: Bwrap, plan: SandboxPlan) -> None:
        self._kernel = kernel
        self._bwrap = program
        self._plan = plan
        self._mounts = NewMounts(kernel) if mounts.available(kernel) else OldMounts(kernel)

    def command_line(
        self, command: Command, covers: Sequence[Mount], status: int, held: HeldStart | None = None
    ) -> list[bytes]:
        """Return the arguments for a command; `status` is the descriptor for bubblewrap's status messages."""
        view = self._root(covers, ())
        staged = self._staged(command)
        # With a stage, arg0 is among its arguments: an option of bubblewrap would name the stage so.
        arg0 = None if staged else command.arg0
        # Bubblewrap is started in that folder, and looks for another one only if no option names it.
        real = real_workdir(command.cwd)
        cwd = None if real == command.cwd else real
        options = bwrap.command_arguments(view, self._bwrap, cwd=cwd, env=command.env, arg0=arg0)
        options += [b"--json-status-fd", b"%d" % status]
        if held is not None:
            options += held.options
        return self._line(options, staged or command.argv)

    def worker_line(self, argv: Sequence[bytes], readable: Sequence[bytes]) -> list[bytes]:
        """Return the arguments for a file worker, which needs the trees in `readable` itself."""
        return self._line([*self._root((), readable), b"--chdir", b"/"], argv)

    def program(self) -> bytes:
        """Return a path that executes bubblewrap itself, whatever is at its own path by then.

        Raises OSError ESTALE if it is no longer the file that was probed.
        """
        opened = os.open(self._bwrap.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        if bwrap.identity_of(os.fstat(opened)) != self._bwrap.identity:
            raise OSError(errno.ESTALE, "bubblewrap is not the file any more that was tried", None)
        return b"/proc/self/fd/%d" % opened

    def _staged(self, command: Command) -> list[bytes]:
        """Return the command as arguments of the Landlock stage; none where there are no rules to apply."""
        kernel, plan = self._kernel, self._plan
        version = landlock.abi(kernel)
        if not landlock_rules.closes_fifos(version, plan):
            return []
        ruleset = landlock_rules.rules_to_inherit(kernel, version, plan, REPORT, self._open_source)
        program, own = command.argv[0], reserve()
        try:
            # Of two values the last one, as `--setenv` leaves it.
            candidates = pipe_candidates(program, env_value(command.env[::-1], b"PATH"))
        except OSError:
            candidates = [program]  # no file can have such a name, and the exec reports that
        stage = Stage(landlock_rules.RULES_OF_THE_ROOT, candidates, program)
        _write(own, stage.image(kernel.machine, ruleset, own))
        shown = program if command.arg0 is None or not self._bwrap.argv0 else command.arg0
        return [b"/proc/self/fd/%d" % own, shown, *command.argv[1:]]

    def _root(self, covers: Sequence[Mount], readable: Sequence[bytes]) -> list[bytes]:
        # A bubblewrap that cannot bind descriptors follows the paths again, later.  At least what is there
        # now must be what was planned.
        if not self._bwrap.bind_fd:
            for mount in (*self._plan.mounts, *covers):
                if mount.kind in (READ, WRITE):
                    os.close(self._open_source(mount))
        return bwrap.root_arguments(
            self._plan,
            self._bwrap,
            covers=covers,
            extra_readable=readable,
            settings=_settings_of_the_system(),
            open_source=self._open_source,
        )

    def _line(self, options: list[bytes], argv: Sequence[bytes]) -> list[bytes]:
        if self._plan.syscall_filter != FILTER_NONE:
            code = seccomp.program(seccomp.rules_of(self._plan.syscall_filter), self._kernel.machine)
            options += [b"--seccomp", b"%d" % readable_memory(code)]
        bwrap.check_count(options, argv)
        joined = b"".join(option + b"\0" for option in options)
        return [bwrap.PROGRAM, b"--args", b"%d" % readable_memory(joined), b"--", *argv]

    def _open_source(self, mount: Mount) -> int:
        """Open what a mount binds, following no symlinks, and check that it is what was planned."""
        opened = self._mounts.open_source(mount.source)
        check_identity(mount.identity, opened)
        os.set_inheritable(opened, True)
        return opened


def readable_memory(content: bytes) -> int:
    """Return an inheritable descriptor from which this content can be read."""
    descriptor = os.memfd_create("execserver", 0)
    _write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _settings_of_the_system() -> list[bytes]:
    """Return what in /proc is no process and could be written to, at least by user 0."""
    return [
        os.fsencode(entry.path)
        for entry in os.scandir("/proc")
        if not entry.name.isdigit() and not entry.is_symlink()
        if entry.is_dir() or entry.stat().st_mode & 0o222
    ]


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
