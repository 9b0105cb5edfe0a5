from __future__ import annotations

import errno
import os

import pytest

from execserver.sandbox.kernel import privileges
from execserver.sandbox.kernel.syscalls import Kernel
from tests.support.roots import USERS, in_child

_PR_GET_DUMPABLE = 3
_PR_GET_PDEATHSIG = 2


def status() -> dict[str, str]:
    with open("/proc/self/status") as file:
        return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}


def told(lines: list[object]) -> int:
    os.write(1, "\n".join(map(str, lines)).encode())
    return 0


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no capabilities to drop")
def test_no_capability_is_left_and_root_gets_none_back() -> None:
    def act() -> int:
        privileges.drop_capabilities(Kernel())
        privileges.no_new_privileges(Kernel())
        os.execv("/bin/sh", ["sh", "-c", "grep -E '^(Cap|NoNew)' /proc/self/status; cat /proc/1/environ"])

    outcome = _exec_outcome(act)
    lines = dict(line.split() for line in outcome.splitlines()[:6])
    assert lines.pop("NoNewPrivs:") == "1"
    assert set(lines) == {"CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"}
    assert set(lines.values()) == {"0000000000000000"}


def _exec_outcome(act: object) -> str:
    """Run what ends in an exec in a grandchild: the harness's own child lives on."""

    def fork_and_wait() -> int:
        pid = os.fork()
        if pid == 0:
            act()  # type: ignore[operator]
        return os.waitpid(pid, 0)[1]

    return in_child(fork_and_wait).out


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no capabilities to drop")
def test_a_change_of_user_brings_no_capability_back() -> None:
    def act() -> int:
        kernel = Kernel()
        privileges.drop_capabilities(kernel)
        refused = 0
        try:
            os.setuid(4242)
        except PermissionError:
            refused = 1
        return told([refused, status()["CapEff"]])

    assert in_child(act).out == "1\n0000000000000000"


@pytest.mark.parametrize("user", USERS)
def test_dumpable_is_set_and_taken_back(user: int) -> None:
    def act() -> int:
        kernel = Kernel()
        seen = []
        for dumpable in (True, False):
            privileges.set_dumpable(kernel, dumpable)
            seen.append(kernel.call("prctl", _PR_GET_DUMPABLE))
        return told([seen])

    assert in_child(act, user).out == "[1, 0]"


def test_a_child_dies_with_the_parent_that_it_was_tied_to() -> None:
    ours, theirs = os.pipe()
    middle = os.fork()
    if middle == 0:
        pid = os.fork()
        if pid == 0:
            privileges.die_with_parent(Kernel())
            os.write(theirs, b"tied")
            os.closerange(0, theirs)
            os.read(os.pipe()[0], 1)  # for ever
        os.close(theirs)
        os.read(ours, 4)
        os._exit(0)
    os.close(theirs)
    os.waitpid(middle, 0)
    assert os.read(ours, 4) == b""  # its end was closed by its death
    os.close(ours)


@pytest.mark.parametrize("without", [(), ("close_range",)], ids=["new", "old"])
def test_every_descriptor_from_a_number_on_is_closed(without: tuple[str, ...]) -> None:
    def act() -> int:
        for number in (5, 77, 300):
            os.dup2(2, number)
        privileges.close_from(Kernel(without), 4)
        left = []
        for number in range(400):
            try:
                os.fstat(number)
                left.append(number)
            except OSError:
                continue
        out = os.dup(1)  # the harness writes its end to a descriptor that is gone now
        os.write(out, repr([number for number in left if number > 3]).encode())
        os._exit(0)

    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(theirs, 1)
        act()
    os.close(theirs)
    assert os.read(ours, 100) == b"[]"
    os.close(ours)
    os.waitpid(pid, 0)


def test_an_unknown_call_is_answered_as_one_the_kernel_lacks() -> None:
    with pytest.raises(OSError) as caught:
        Kernel().call("no_such_call")
    assert caught.value.errno == errno.ENOSYS
    with pytest.raises(OSError) as caught:
        Kernel(("prctl",)).call("prctl", _PR_GET_PDEATHSIG)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSYS, "prctl")


def test_a_failing_call_raises_its_error() -> None:
    with pytest.raises(OSError) as caught:
        Kernel().call("umount2", b"/nonesuch/path", 0)
    assert caught.value.errno in (errno.ENOENT, errno.EPERM)
