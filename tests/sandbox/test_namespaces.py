"""Limits on the namespaces that can be made inside of a sandbox, also where a new /proc takes none."""

from __future__ import annotations

import errno
import os

import pytest

from execserver.sandbox.kernel import namespaces
from execserver.sandbox.kernel.syscalls import AT_FDCWD, Kernel

_NEW_USER = 0x10000000
_SETTING = b"sys/user/max_user_namespaces"
_NO_NAMESPACES = 77  # a status of the child


class Refusing(Kernel):
    """As Linux 4.15 for an ordinary user: in a procfs of a user namespace no setting can be written."""

    def call(self, name: str, *arguments: object) -> int:
        """Make a system call, unless it opens a setting below a descriptor."""
        if name == "openat" and arguments[:2] != (AT_FDCWD, b"/proc/" + _SETTING):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), name)
        return super().call(name, *arguments)


def second_namespace(kernel: Kernel) -> int:
    """Make a user namespace with a limit of 0, and another in it; return the errno of that, or 0."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(_second_namespace(kernel))
        finally:
            os._exit(errno.EIO)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _second_namespace(kernel: Kernel) -> int:
    plain = Kernel()
    try:
        plain.call("unshare", _NEW_USER)
    except OSError:
        return _NO_NAMESPACES
    namespaces.limit(kernel, os.open("/proc", os.O_RDONLY | os.O_DIRECTORY), b"user", b"0")
    try:
        plain.call("unshare", _NEW_USER)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


@pytest.mark.parametrize("kernel", [Kernel(), Refusing()], ids=["new", "old"])
def test_none_can_be_made_beyond_the_limit(kernel: Kernel) -> None:
    found = second_namespace(kernel)
    if found == _NO_NAMESPACES:
        pytest.skip("this user may make no user namespaces here")
    assert found == errno.ENOSPC
