"""The back end of last resort: Landlock and a filter of system calls, without any namespace.

Landlock grants rights below a folder and takes none away again, so it serves only policies that let
everything be read and name no exception below a writable root.  What it does not govern at all, the filter
refuses to everything: changes of modes, owners, times and attributes, the shared memory, queues and
semaphores of System V and POSIX, which are the host's here, and settings of other processes.  So a command in
a writable root may not `chmod` there either: more is refused than the policy asks, never less.
"""

from __future__ import annotations

import errno
import struct

from execserver.sandbox import landlock, privileges, seccomp
from execserver.sandbox.plan import NETWORK_PROXY, ROOT_EMPTY, ROOT_READ_ONLY
from execserver.sandbox.seccomp_table import ARCHITECTURES, NO_CALL, X32_BIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.plan import ViewPlan
    from execserver.sandbox.syscalls import Kernel

LEAST_ABI = 3  # before, a file that may only be read could be cut

# Refused to everything, with EPERM: by name, with the number on x86_64 and on aarch64 (0: it has none).
REFUSED = {
    "chmod": (90, 0),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, 0),
    "fchown": (93, 55),
    "lchown": (94, 0),
    "fchownat": (260, 54),
    "utime": (132, 0),
    "utimes": (235, 0),
    "futimesat": (261, 0),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_by_handle_at": (304, 265),
    "setns": (308, 268),
}
# Refused where this argument names another process than the caller, by 0: name, numbers, argument.
ABOUT_OTHERS = {
    "setpriority": (141, 140, 1),
    "sched_setparam": (142, 118, 0),
    "sched_setscheduler": (144, 119, 0),
    "sched_setaffinity": (203, 122, 0),
    "sched_setattr": (314, 274, 0),
    "ioprio_set": (251, 30, 1),
    "migrate_pages": (256, 238, 0),
    "move_pages": (279, 239, 0),
    "prlimit64": (302, 261, 0),
    "pidfd_getfd": (438, 438, 0),
    "process_madvise": (440, 440, 0),
}
_INSTRUCTION = struct.Struct("<HBBI")
# ioctl FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS, FS_IOC_FSSETXATTR: attributes such as immutable.
_ATTRIBUTE_REQUESTS = (0x40086602, 0x40046602, 0x401C5820)
_IOCTL = {"x86_64": 16, "aarch64": 29}
_FIRST_ARGUMENT_AT = 16
_SECOND_ARGUMENT_AT = 24


def inexact(plan: ViewPlan) -> str:
    """Return why Landlock cannot express a plan exactly, or "" when it can."""
    if plan.root == ROOT_EMPTY:
        return "it cannot hide what exists"
    if plan.root != ROOT_READ_ONLY:
        return "it cannot take away what lies in a writable root"
    if plan.network == NETWORK_PROXY:
        return "it cannot route a managed proxy"
    if plan.denied or plan.globs:
        return "it cannot deny what lies in a readable folder"
    if plan.read_only or plan.missing:
        return "it cannot keep parts of a writable folder read-only"
    return ""


def confine_self(kernel: Kernel, plan: ViewPlan) -> None:
    """Restrict the calling process, which has one thread, for good.

    Raises OSError; then the process must end.  The plan has been found to be expressible.
    """
    version = landlock.abi(kernel)
    if version < LEAST_ABI or inexact(plan):
        raise OSError(errno.EOPNOTSUPP, "Landlock does not express this policy here")
    privileges.leave_session_keyring(kernel)
    if has_capabilities():
        privileges.drop_capabilities(kernel)
    privileges.no_new_privileges(kernel)
    landlock.restrict_files(kernel, version, plan, within_view=False)
    seccomp.install(kernel, plan.syscall_filter)
    seccomp.install_program(kernel, program(kernel.machine))


def has_capabilities() -> bool:
    """Tell whether this process has, or could get, any capability: an ordinary user may drop none."""
    with open("/proc/self/status", "rb") as file:
        sets = [line for line in file.read().splitlines() if line[:6] in (b"CapPrm", b"CapEff", b"CapInh")]
    return any(int(line.partition(b":")[2], 16) for line in sets)


def program(machine: str) -> bytes:
    """Return the filter of what Landlock does not govern; an unknown machine raises KeyError."""
    column = ("x86_64", "aarch64").index(machine) if machine in ARCHITECTURES else -1
    if column < 0:
        raise KeyError(machine)
    refuse = (seccomp.RETURN, 0, 0, seccomp.REFUSE)
    code = [
        (seccomp.LOAD, 0, 0, 4),
        (seccomp.JUMP_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (seccomp.RETURN, 0, 0, seccomp.KILL),
        (seccomp.LOAD, 0, 0, 0),
    ]
    if machine == "x86_64":
        kill = (seccomp.RETURN, 0, 0, seccomp.KILL)
        code += [(seccomp.JUMP_EQUAL, 2, 0, NO_CALL), (seccomp.JUMP_GREATER_EQUAL, 0, 1, X32_BIT), kill]
    for numbers in REFUSED.values():
        if numbers[column]:
            code += [(seccomp.JUMP_EQUAL, 0, 1, numbers[column]), refuse]
    for *numbers_of, argument in ABOUT_OTHERS.values():
        code += [
            (seccomp.JUMP_EQUAL, 0, 4, numbers_of[column]),
            (seccomp.LOAD, 0, 0, _FIRST_ARGUMENT_AT + 8 * argument),
            (seccomp.JUMP_EQUAL, 1, 0, 0),
            refuse,
            (seccomp.LOAD, 0, 0, 0),
        ]
    # The last call looked at: from here on the number is not needed any more.
    code += [
        (seccomp.JUMP_EQUAL, 1, 0, _IOCTL[machine]),
        (seccomp.RETURN, 0, 0, seccomp.ALLOW),
        (seccomp.LOAD, 0, 0, _SECOND_ARGUMENT_AT),
    ]
    for request in _ATTRIBUTE_REQUESTS:
        code += [(seccomp.JUMP_EQUAL, 0, 1, request), refuse]
    code.append((seccomp.RETURN, 0, 0, seccomp.ALLOW))
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in code)
