"""Plans in a few words, and payloads run inside their views, as root or as an ordinary user.

Payloads are shell scripts or functions of a forked child; nothing of them runs outside a view that the test
has made.
"""

from __future__ import annotations

import ast
import os
import shutil
import stat
import struct
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from execserver.sandbox.kernel import privileges, seccomp
from execserver.sandbox.kernel.seccomp_table import ARCHITECTURES
from execserver.sandbox.kernel.syscalls import Kernel, number_of
from execserver.sandbox.plan import (
    FILTER_RESTRICTED,
    NETWORK_NONE,
    READ,
    ROOT_READ_ONLY,
    WRITE,
    Identity,
    Mount,
    SandboxPlan,
)
from execserver.sandbox.rootfs.builder import RootFailed
from execserver.zygote.confine.standalone import confine_self_then_call, run_confined
from tests.support.folders import plain_place

ENV = (b"PATH=/usr/bin:/bin",)
FREE_UID = 54321  # of nobody; no entry anywhere is needed
# Who runs a view; an ordinary user where the tests run as one.
SELF = os.geteuid()
USERS = (0, FREE_UID) if SELF == 0 else (SELF,)
# What kernels before 5.12 lack, and what before 5.3 and 5.13 besides.
OLD_KERNEL = (
    *("openat2", "open_tree", "mount_setattr", "clone3", "close_range"),
    *("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"),
)
REFUSED = 200  # what a payload's process says when the view could not be made
_ENOSYS = 38


class Outcome(NamedTuple):
    """How a payload ended: raw wait status, output, errors, and why there was no view, if so."""

    status: int
    out: str
    err: str
    refusal: str = ""

    @property
    def value(self) -> object:
        """What the function returned, if that can be written as a literal."""
        assert self.status == 0, self
        return ast.literal_eval(self.out)

    @property
    def code(self) -> int:
        """The exit code; fails when a signal ended it."""
        assert os.WIFEXITED(self.status), self
        return os.WEXITSTATUS(self.status)


def identity(path: Path | bytes) -> Identity:
    """Return what is at a path, as plans note it."""
    found = os.lstat(path)
    return found.st_dev, found.st_ino, stat.S_IFMT(found.st_mode)


def mount(kind: str, path: Path) -> Mount:
    """Return a mount of what is at a path now."""
    source = os.fsencode(path) if kind in (READ, WRITE) else b""
    return Mount(kind, os.fsencode(path), source, identity(path))


def plan(
    *mounts: Mount,
    root: str = ROOT_READ_ONLY,
    network: str = NETWORK_NONE,
    syscall_filter: str = FILTER_RESTRICTED,
    nesting: bool = False,
) -> SandboxPlan:
    """Return a plan of some mounts."""
    return SandboxPlan(root, mounts, network=network, syscall_filter=syscall_filter, nesting=nesting)


def run(
    view: SandboxPlan,
    script: str | Sequence[str],
    *,
    user: int = SELF,
    cwd: Path | str = "/",
    env: Sequence[bytes] = ENV,
    arg0: bytes | None = None,
    kernel: Kernel | None = None,
    missing: Sequence[str] = (),
    extra: Sequence[Mount] = (),
    stdin: str = "",
) -> Outcome:
    """Run a shell script, or a program with arguments, inside a view.

    `missing` are system calls that are answered with ENOSYS by a real filter.
    """
    argv = ["/bin/sh", "-c", script] if isinstance(script, str) else list(script)

    def act() -> int:
        if missing:
            hide_calls(missing)
        return run_confined(
            view, [os.fsencode(arg) for arg in argv], env, os.fsencode(cwd), arg0, extra, kernel=kernel
        )

    return in_child(act, user, stdin)


def call(
    view: SandboxPlan, function: Callable[[], object], *, user: int = SELF, kernel: Kernel | None = None
) -> Outcome:
    """Call a function inside a view, as a file worker is; the outcome's `value` is its result."""

    def checked() -> int:
        try:
            result = function()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
            return 99
        os.write(1, repr(result).encode())
        return 0

    return in_child(lambda: confine_self_then_call(view, checked, kernel) << 8, user)


def in_child(act: Callable[[], int], user: int = SELF, stdin: str = "") -> Outcome:
    """Call `act`, which returns a wait status, in a forked child with pipes as stdio, as a user."""
    into, out, err, end = (os.pipe() for _ in range(4))
    os.write(into[1], stdin.encode())
    os.close(into[1])
    pid = os.fork()
    if pid == 0:
        try:
            for number, descriptor in enumerate((into[0], out[1], err[1])):
                os.dup2(descriptor, number)
            become(user)
            os.write(end[1], struct.pack("i", act()))
        except RootFailed as failed:
            os.write(end[1], struct.pack("i", REFUSED << 8) + os.fsencode(str(failed)))
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(0)
    for descriptor in (into[0], out[1], err[1], end[1]):
        os.close(descriptor)
    texts = [_read(descriptor) for descriptor in (out[0], err[0])]
    told = _read(end[0])
    os.waitpid(pid, 0)
    assert len(told) >= 4, texts
    refusal = os.fsdecode(told[4:])
    return Outcome(struct.unpack_from("i", told)[0], texts[0].decode(), texts[1].decode(), refusal)


def become(user: int) -> None:
    """Become an ordinary user for good, where that is another one."""
    if user != os.geteuid():
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)


def give(path: Path, user: int) -> Path:
    """Give a folder and what is in it to a user."""
    if os.geteuid() == 0:
        for entry in (path, *path.rglob("*")):
            os.chown(entry, user, user, follow_symlinks=False)
    return path


def hide_calls(names: Sequence[str]) -> None:
    """Have the kernel answer ENOSYS to system calls, in this process and all it starts, for good."""
    kernel = Kernel()
    code = [
        (seccomp.LOAD, 0, 0, 4),
        (seccomp.JUMP_EQUAL, 1, 0, ARCHITECTURES[kernel.machine]),
        (seccomp.RETURN, 0, 0, seccomp.ALLOW),
        (seccomp.LOAD, 0, 0, 0),
    ]
    for name in names:
        number = number_of(kernel.machine, name)
        code += [(seccomp.JUMP_EQUAL, 0, 1, number), (seccomp.RETURN, 0, 0, 0x00050000 | _ENOSYS)]
    code.append((seccomp.RETURN, 0, 0, seccomp.ALLOW))
    privileges.no_new_privileges(kernel)
    seccomp.install_program(kernel, b"".join(struct.pack("<HBBI", *one) for one in code))


def _read(descriptor: int) -> bytes:
    data = b""
    while piece := os.read(descriptor, 65536):
        data += piece
    os.close(descriptor)
    return data


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a temporary folder that every user can pass through, unlike pytest's own; removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="execserver-test-", dir=plain_place()))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
