"""Probes what works on this machine: tries every step that a sandbox needs, in processes that end.

Nothing is concluded from a version or a setting; these only explain what failed.  The caller has one thread,
and its descriptors 0, 1 and 2 are open.  Every probe ends within its time limit.
"""

from __future__ import annotations

import errno
import os
import select
import signal

from execserver.sandbox.backends import blockers
from execserver.sandbox.backends.blockers import MachineFacts, explain, system_blocker
from execserver.sandbox.backends.report import (
    LANDLOCK,
    MOUNT_CALLS,
    MOUNTS_NEW,
    MOUNTS_OLD,
    NAMESPACES,
    PROC,
    SECCOMP,
    USER_NAMESPACES,
    Check,
    Report,
)
from execserver.sandbox.kernel import landlock, namespaces, privileges, seccomp
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import FILTER_RESTRICTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

TRIAL_LIMIT_S = 5.0

_CAP_SYS_ADMIN = 21
_SYSCTLS = (blockers.SYSCTL_MAX, blockers.SYSCTL_CLONE, blockers.SYSCTL_APPARMOR)
_PRIVATE = 0x40000 | 0x4000  # MS_PRIVATE | MS_REC
_NO_SUID_DEV_EXEC = 2 | 4 | 8
_DETACH = 2
_OTHER_NAMESPACES = (
    namespaces.NEW_MOUNTS
    | namespaces.NEW_PIDS
    | namespaces.NEW_IPC
    | namespaces.NEW_UTS
    | namespaces.NEW_NETWORK
)
# Calls, each with arguments that have no effect: a kernel that has the call fails with another error than
# ENOSYS.  Last, the Linux version that has it.
_CALLS: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("open_tree", (-1, b"", 0), "5.2"),
    ("clone3", (None, 0), "5.3"),
    ("openat2", (-1, None, None, 0), "5.6"),
    ("close_range", (2, 1, 0), "5.9"),
    ("mount_setattr", (-1, b"", 0xFFFFFFFF, None, 0), "5.12"),
)
_NEW_MOUNT_CALLS = ("open_tree", "openat2", "mount_setattr")
_LANDLOCK_TRUNCATE_ABI = 3  # the first that refuses to truncate a file that may only be read


def probe(kernel: Kernel | None = None) -> Report:
    """Probe everything but other programs; `probe_bwrap` does that.  Takes 20 to 50 ms."""
    kernel = kernel or Kernel()
    facts = read_facts()
    user = _user_namespaces(kernel, facts)
    others = _namespaces(kernel, facts, user)
    missing = missing_calls(kernel)
    mounts = MOUNTS_OLD if any(name in missing for name in _NEW_MOUNT_CALLS) else MOUNTS_NEW
    filters = _seccomp(kernel, facts)
    version = landlock.abi(kernel)
    return Report(
        kernel=os.uname().release,
        uid=os.geteuid(),
        native=all(check.works for check in others) and filters.works,
        mounts=mounts,
        user_namespace=user.works,
        seccomp=filters.works,
        landlock_abi=version,
        checks=(user, *others, _mount_calls(mounts, missing), filters, _landlock(kernel, version)),
    )


def read_facts() -> MachineFacts:
    """Return what the machine says of itself."""
    status = _status_fields()
    return MachineFacts(
        {name: text for name in _SYSCTLS if (text := _sysctl(name)) is not None},
        int(status.get("Seccomp", "0")),
        bool(int(status.get("CapEff", "0"), 16) >> _CAP_SYS_ADMIN & 1),
        _in_chroot(),
        _read("/sys/fs/selinux/enforce") == "1",
    )


def missing_calls(kernel: Kernel) -> dict[str, str]:
    """Return the calls that this kernel lacks or a filter refuses, with the Linux version that has each."""
    missing = {}
    for name, arguments, since in _CALLS:
        try:
            kernel.call(name, *arguments)
        except OSError as error:
            # A container's filter may answer EPERM to calls that it does not know.
            if error.errno in (errno.ENOSYS, errno.EPERM):
                missing[name] = since
    return missing


def attempt(action: Callable[[], None]) -> tuple[str, int] | None:
    """Run an action in a forked process; return None if it succeeded, else the failed step and its errno.

    The action raises OSError with the step as `filename`.  If the process dies, the errno is EIO; if it
    hangs, ETIMEDOUT.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if not pid:
        _run_and_exit(action, writer)
    os.close(writer)
    try:
        if not select.select([reader], [], [], TRIAL_LIMIT_S)[0]:
            os.kill(pid, signal.SIGKILL)
            return "", errno.ETIMEDOUT
        told = os.read(reader, 256).decode("utf-8", "replace")
    finally:
        os.close(reader)
        os.waitpid(pid, 0)
    if told == "ok":
        return None
    number, _, step = told.partition(" ")
    return step, int(number) if number.isdigit() else errno.EIO


def _run_and_exit(action: Callable[[], None], writer: int) -> None:
    try:
        action()
        told = b"ok"
    except OSError as error:
        told = f"{error.errno or errno.EIO} {error.filename or ''}".encode()
    except BaseException:  # a fork must not run on as a second prober
        told = b""
    os.write(writer, told)
    os._exit(0)


def _step(name: str, action: Callable[[], object]) -> None:
    try:
        action()
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), name) from None


def _user_namespaces(kernel: Kernel, facts: MachineFacts) -> Check:
    def action() -> None:
        identity = namespaces.Identity()
        _step(blockers.STEP_USER, lambda: kernel.call("unshare", namespaces.NEW_USER))
        _step(blockers.STEP_MAPS, lambda: namespaces.map_own_ids(kernel, identity))

    found_blocker = system_blocker(_read("/proc/version") or "")
    if found_blocker is not None:
        return Check(USER_NAMESPACES, False, "", *found_blocker)
    failed = attempt(action)
    return _checked(USER_NAMESPACES, "made by this user", failed, facts)


def _namespaces(kernel: Kernel, facts: MachineFacts, user: Check) -> tuple[Check, Check]:
    """Probe what comes after the user namespace: as its owner, or as root without one."""
    with_user = user.works
    privileged = facts.privileged and not with_user

    def begin() -> None:
        if with_user:
            identity = namespaces.Identity()
            kernel.call("unshare", namespaces.NEW_USER)
            namespaces.map_own_ids(kernel, identity)
        _step(blockers.STEP_NAMESPACES, lambda: kernel.call("unshare", _OTHER_NAMESPACES))
        # As in a real start: no mount made here may reach the host.
        _step(blockers.STEP_MOUNT, lambda: kernel.call("mount", b"none", b"/", None, _PRIVATE, None))

    def sandbox_root() -> None:
        begin()
        _step(blockers.STEP_MOUNT, lambda: kernel.call("mount", b"none", b"/tmp", b"tmpfs", 0, None))
        os.mkdir("/tmp/old")
        os.chdir("/tmp")
        _step(blockers.STEP_PIVOT, lambda: kernel.call("pivot_root", b".", b"old"))
        _step(blockers.STEP_MOUNT, lambda: kernel.call("umount2", b"/old", _DETACH))

    def procfs() -> None:
        begin()
        _in_pid_namespace(lambda: kernel.call("mount", b"proc", b"/proc", b"proc", _NO_SUID_DEV_EXEC, None))

    if not (with_user or privileged):
        lacking = ("needs a user namespace or root's rights", user.cure)
        return Check(NAMESPACES, False, "", *lacking), Check(PROC, False, "", *lacking)
    detail = "in a user namespace" if with_user else "with root's rights"
    made = _checked(NAMESPACES, f"mount, pid, ipc, uts, network: {detail}", attempt(sandbox_root), facts)
    return made, _procfs(attempt(procfs), facts)


def _procfs(failed: tuple[str, int] | None, facts: MachineFacts) -> Check:
    if failed is None:
        return Check(PROC, True, "a new one for each view")
    blocker, cure = explain(*failed, facts)
    if failed[1] == errno.EPERM:  # a sandbox root is possible without a new procfs
        return Check(PROC, True, f"the machine's own, read-only: {blocker} (cure: {cure})")
    return Check(PROC, False, "", blocker, cure)


def _in_pid_namespace(action: Callable[[], object]) -> None:
    """Run an action in a child: after `unshare`, only children are in the new pid namespace."""
    pid = os.fork()
    if not pid:
        try:
            action()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or errno.EIO)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        number = status if status > 0 else errno.EIO
        raise OSError(number, os.strerror(number), blockers.STEP_PROC)


def _checked(name: str, detail: str, failed: tuple[str, int] | None, facts: MachineFacts) -> Check:
    if failed is None:
        return Check(name, True, detail)
    return Check(name, False, "", *explain(*failed, facts))


def _mount_calls(mounts: str, missing: dict[str, str]) -> Check:
    if not missing:
        return Check(MOUNT_CALLS, True, "by descriptor (Linux 5.12 or newer)")
    lacking = ", ".join(f"{name} (Linux {since})" for name, since in missing.items())
    how = "with mount(2), as on Linux 5.4 and 5.10" if mounts == MOUNTS_OLD else "by descriptor"
    return Check(MOUNT_CALLS, True, f"{how}; without {lacking}")


def _seccomp(kernel: Kernel, facts: MachineFacts) -> Check:
    def action() -> None:
        privileges.no_new_privileges(kernel)
        _step("filter of system calls", lambda: seccomp.install(kernel, FILTER_RESTRICTED))

    failed = attempt(action)
    if failed is None:
        return Check(SECCOMP, True, f"filters for {kernel.machine}")
    if failed[1] in (errno.ENOSYS, errno.EINVAL):
        cure = "use a kernel with CONFIG_SECCOMP_FILTER"
        return Check(SECCOMP, False, "", "the kernel has no filters of system calls", cure)
    return Check(SECCOMP, False, "", *explain(*failed, facts))


def _landlock(kernel: Kernel, version: int) -> Check:
    if version >= _LANDLOCK_TRUNCATE_ABI:
        signals = "" if version >= 6 else "; it does not hold back signals (Linux 6.12 does)"
        return Check(LANDLOCK, True, f"ABI {version}{signals}")
    if version:
        blocker = f"Landlock ABI {version} cannot keep files from being cut"
        return Check(LANDLOCK, False, "", blocker, "use Linux 6.2 or newer")
    try:
        kernel.call("landlock_create_ruleset", None, 0, 1)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            cure = "add `landlock` to the list of the kernel's start parameter lsm="
            return Check(LANDLOCK, False, "", "Landlock was switched off when the kernel started", cure)
    return Check(
        LANDLOCK,
        False,
        "",
        "the kernel has no Landlock",
        "use Linux 6.2 or newer with CONFIG_SECURITY_LANDLOCK",
    )


def _status_fields() -> dict[str, str]:
    text = _read("/proc/self/status") or ""
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _in_chroot() -> bool:
    """Tell whether the root directory is no mount point: then this is a chroot."""
    mounts = _read("/proc/self/mountinfo") or ""
    return bool(mounts) and all(line.split(" ")[4] != "/" for line in mounts.splitlines())


def _sysctl(name: str) -> str | None:
    return _read("/proc/sys/" + name.replace(".", "/"))


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None
