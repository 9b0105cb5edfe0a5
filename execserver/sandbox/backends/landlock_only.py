"""The Landlock back end, the last resort: Landlock and a system call filter, without any namespace.

Landlock grants rights below a directory and takes none away again.  So it serves only policies that let
everything be read and have no exception below a writable root.

What Landlock does not govern, the filter refuses altogether (`seccomp_table.WITHOUT_NAMESPACES`): changes of
modes, owners, times and attributes; shared memory, queues and semaphores of System V and POSIX, which are the
host's here; settings of other processes; and every request of `ioctl` that is not known to be harmless.  So a
command may not `chmod` in a writable root either: more is refused than the policy asks, never less.
"""

from __future__ import annotations

import errno

from execserver.sandbox.kernel import landlock, privileges, seccomp
from execserver.sandbox.plan import NETWORK_PROXY, ROOT_EMPTY, ROOT_READ_ONLY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import SandboxPlan

LEAST_ABI = 3  # before, a file that may only be read could be truncated


def inexact(plan: SandboxPlan) -> str:
    """Return why Landlock cannot express a plan exactly, or "" when it can."""
    if plan.root == ROOT_EMPTY:
        return "it cannot hide what exists"
    if plan.root != ROOT_READ_ONLY:
        return "it cannot take away what lies in a writable root"
    if plan.network == NETWORK_PROXY:
        return "its rules for connections name ports and no addresses, so any host could be the proxy"
    if plan.denied or plan.globs:
        return "it cannot deny what lies in a readable folder"
    if plan.read_only or plan.missing:
        return "it cannot keep parts of a writable folder read-only"
    return ""


def confine_self(kernel: Kernel, plan: SandboxPlan) -> None:
    """Restrict the calling process, which has one thread, for good.

    Raises OSError, also for a plan that is `inexact`; then the process must end.
    """
    version = landlock.abi(kernel)
    if version < LEAST_ABI or inexact(plan):
        raise OSError(errno.EOPNOTSUPP, "Landlock does not express this policy here")
    # The filter comes last: it refuses some of the calls before it.
    privileges.leave_session_keyring(kernel)
    if has_capabilities():
        privileges.drop_capabilities(kernel)
    privileges.no_new_privileges(kernel)
    landlock.restrict_files(kernel, version, plan, within_root=False)
    seccomp.install(kernel, plan.syscall_filter, namespaces=False)


def has_capabilities() -> bool:
    """Tell whether this process has, or could get, any capability.  Without any, dropping them fails."""
    with open("/proc/self/status", "rb") as file:
        sets = [line for line in file.read().splitlines() if line[:6] in (b"CapPrm", b"CapEff", b"CapInh")]
    return any(int(line.partition(b":")[2], 16) for line in sets)
