"""Why this machine refuses something that the sandbox needs, and what to do about it.

Pure: an errno, the step that failed and the machine's settings become a blocker and a remedy, as sentences.
"""

from __future__ import annotations

import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# The steps of building a sandbox root, in their order.
STEP_USER = "user namespace"
STEP_MAPS = "id maps"
STEP_NAMESPACES = "mount, pid, ipc, uts and network namespaces"
STEP_MOUNT = "mount"
STEP_PROC = "procfs"
STEP_PIVOT = "change of the root directory"

SYSCTL_MAX = "user.max_user_namespaces"
SYSCTL_CLONE = "kernel.unprivileged_userns_clone"
SYSCTL_APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"

_NO_WORK = "install bubblewrap with the setuid bit (chmod u+s), or start the server as root"
_CONTAINER = (
    "start the container with --security-opt seccomp=unconfined (and --security-opt apparmor=unconfined), "
    "or with a seccomp profile that allows clone, clone3, unshare, mount, umount2 and pivot_root"
)
_SELINUX = f"allow the server's domain `user_namespace create` (audit2allow shows the rule), or {_NO_WORK}"
_APPARMOR = (
    f"sysctl -w {SYSCTL_APPARMOR}=0, or give the program an AppArmor profile with the rule `userns,`, "
    "or install the bubblewrap of the distribution, which has one"
)


class MachineFacts:
    """What the machine says of itself, to explain a failure.

    These are sysctl values by name (absent ones left out), the seccomp mode of this process, whether it has
    CAP_SYS_ADMIN, whether it is in a chroot, and whether SELinux is enforcing.
    """

    __slots__ = ("chroot", "privileged", "seccomp_mode", "selinux", "sysctls")

    def __init__(
        self,
        sysctls: Mapping[str, str] | None = None,
        seccomp_mode: int = 0,
        privileged: bool = False,
        chroot: bool = False,
        selinux: bool = False,
    ) -> None:
        self.sysctls = dict(sysctls or {})
        self.seccomp_mode = seccomp_mode
        self.privileged = privileged
        self.chroot = chroot
        self.selinux = selinux


def explain(step: str, number: int, facts: MachineFacts) -> tuple[str, str]:
    """Return blocker and remedy for a step that failed with an errno."""
    name = errno.errorcode.get(number, str(number))
    if step == STEP_USER:
        return _user_namespace(number, name, facts)
    # Before all others: under this setting the namespace is made, and every later step in it fails.
    if facts.sysctls.get(SYSCTL_APPARMOR) == "1" and not facts.privileged and number in _REFUSALS:
        return (
            f"AppArmor lets an unprivileged user namespace do nothing ({SYSCTL_APPARMOR}=1): {step}: {name}",
            _APPARMOR,
        )
    if number == errno.ENOSPC:
        return (
            f"the limit on namespaces of this user is reached or 0: {step}: {name}",
            "raise the sysctls user.max_{mnt,pid,ipc,uts,net}_namespaces",
        )
    if step == STEP_PROC and number in _REFUSALS:
        return (
            "no new procfs may be mounted, because this one has masked parts, as in a container",
            "start the container with --security-opt systempaths=unconfined (podman: unmask=ALL)",
        )
    if number in _REFUSALS and facts.seccomp_mode == 2:
        return f"a seccomp filter, as container programs set one, refuses the {step} ({name})", _CONTAINER
    if step == STEP_PIVOT and number == errno.EINVAL:
        return (
            f"the root directory cannot be changed ({name}): it is the initial ramdisk or no mount point",
            "start the server after a switch_root, or from a root that is a mount point (mount --bind / /)",
        )
    return f"the kernel or a security module refuses the {step} ({name})", _NO_WORK


_REFUSALS = (errno.EPERM, errno.EACCES)


def _user_namespace(number: int, name: str, facts: MachineFacts) -> tuple[str, str]:
    if number in (errno.ENOSYS, errno.EINVAL):
        return f"the kernel was built without user namespaces ({name})", _NO_WORK
    if number in (errno.ENOSPC, errno.EUSERS):
        limit = facts.sysctls.get(SYSCTL_MAX)
        if limit == "0":
            return f"user namespaces are switched off ({SYSCTL_MAX}=0)", f"sysctl -w {SYSCTL_MAX}=15000"
        return (
            f"the limit on user namespaces is reached ({SYSCTL_MAX}={limit or 'unknown'}, 32 levels)",
            f"sysctl -w {SYSCTL_MAX}=N with a larger N, here and in the system around this container",
        )
    if facts.sysctls.get(SYSCTL_CLONE) == "0" and not facts.privileged:
        return f"only root may make user namespaces ({SYSCTL_CLONE}=0)", f"sysctl -w {SYSCTL_CLONE}=1"
    if facts.sysctls.get(SYSCTL_APPARMOR) == "1" and not facts.privileged:
        return f"AppArmor refuses user namespaces ({SYSCTL_APPARMOR}=1)", _APPARMOR
    if facts.seccomp_mode == 2:
        return (
            f"a seccomp filter, as container programs set one, refuses user namespaces ({name})",
            _CONTAINER,
        )
    if facts.chroot:
        return (
            f"the server runs in a chroot, where no user namespace can be made ({name})",
            "start it outside the chroot, or in a root made by pivot_root, as containers do",
        )
    # The kernel itself answers EPERM to who may not.
    if facts.selinux and number == errno.EACCES:
        return f"SELinux refuses user namespaces ({name})", _SELINUX
    return f"the kernel or a security module refuses user namespaces ({name})", _NO_WORK


def system_blocker(version_text: str) -> tuple[str, str] | None:
    """Return blocker and remedy if the text of /proc/version says that this is WSL1, which is no Linux."""
    text = version_text.lower()
    if "microsoft" in text and "wsl2" not in text and "microsoft-standard" not in text:
        return "this is WSL1, which has no Linux kernel", "change to WSL2: wsl --set-version DISTRIBUTION 2"
    return None
