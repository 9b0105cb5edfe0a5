"""The system call filters, as tables for people to read (wire contract, the network rules of the sandbox).

A filter lists refused calls; every other call is allowed.  A refused call fails with EPERM, except for the
two conditions that say otherwise.  Rules look at the low 32 bits of arguments: of these arguments the kernel
uses no more.  Calls of a foreign architecture, x32 included, kill the process: their numbers mean something
else.  docs/system-calls.md names every call of the kernel, refused or not, with the reason.
"""

from __future__ import annotations

from execserver.sandbox.kernel.seccomp_requests import KNOWN_REQUESTS, REFUSED_RANGES, REFUSED_REQUESTS

AF_UNIX = 1
AF_INET = 2
AF_INET6 = 10
AF_NETLINK = 16
SOCK_DGRAM = 2
SOCK_RAW = 3  # a Unix socket of this type is a datagram socket
TYPE_MASK = 0xF  # what is not a flag like SOCK_CLOEXEC

ALWAYS = "always"
ABSENT = "always, as by a kernel without the call"  # ENOSYS: programs then do without
FIRST_NOT = "first argument not"  # refused unless the first argument is one of the values
SECOND_NOT = "second argument not"
SECOND_IS = "second argument is"  # refused when the second argument is one of the values
SECOND_WITHIN = "second argument within"  # refused from one value to the next: pairs of a first and a last
TYPE_IS = "type is"  # refused when the second argument without the flags of `socket` is one of the values
# Refused with ENOTTY, "no such request for this file", outside of these pairs of a first and a last one.
REQUEST_OUTSIDE = "request outside"

Rule = tuple[str, str, tuple[int, ...]]

_F_SETLEASE, _F_SETDELEG = 1024, 1040
_PRIO_PROCESS = 0
_IOPRIO_WHO_PROCESS = 1
_ONESELF = 0

# For every sandboxed command, whatever its policy and whatever enforces it.
COMMON: tuple[Rule, ...] = (
    # For a missing key the kernel runs a helper of the machine, as root and outside every namespace.  And the
    # keys of a user belong to everything that the user runs.
    ("add_key", ABSENT, ()),
    ("request_key", ABSENT, ()),
    ("keyctl", ABSENT, ()),
    # The machine has a small number of these requests for all users together (fs.aio-max-nr).
    ("io_setup", ABSENT, ()),
    # Rings make system calls that no filter sees.
    ("io_uring_setup", ALWAYS, ()),
    ("io_uring_enter", ALWAYS, ()),
    ("io_uring_register", ALWAYS, ()),
    # Of use for administering a machine, and for attacking its kernel.
    ("acct", ALWAYS, ()),
    ("bpf", ALWAYS, ()),
    ("delete_module", ALWAYS, ()),
    ("fanotify_init", ALWAYS, ()),
    ("finit_module", ALWAYS, ()),
    ("init_module", ALWAYS, ()),
    ("ioperm", ALWAYS, ()),
    ("iopl", ALWAYS, ()),
    ("kexec_file_load", ALWAYS, ()),
    ("kexec_load", ALWAYS, ()),
    ("lookup_dcookie", ALWAYS, ()),
    ("open_by_handle_at", ALWAYS, ()),
    ("perf_event_open", ALWAYS, ()),
    ("quotactl", ALWAYS, ()),
    ("quotactl_fd", ALWAYS, ()),
    ("swapoff", ALWAYS, ()),
    ("swapon", ALWAYS, ()),
    ("userfaultfd", ALWAYS, ()),
    # A lease holds up whoever opens the file, 45 s each time.  The right to read is enough to take one.
    ("fcntl", SECOND_IS, (_F_SETLEASE, _F_SETDELEG)),
    # The other targets are all processes of a user or of a group: without namespaces, the server among them.
    ("setpriority", FIRST_NOT, (_PRIO_PROCESS,)),
    ("ioprio_set", FIRST_NOT, (_IOPRIO_WHO_PROCESS,)),
    ("ioctl", SECOND_IS, REFUSED_REQUESTS),
    ("ioctl", SECOND_WITHIN, REFUSED_RANGES),
)

_LOOKING_INTO_OTHERS: tuple[Rule, ...] = (
    ("ptrace", ALWAYS, ()),
    ("process_vm_readv", ALWAYS, ()),
    ("process_vm_writev", ALWAYS, ()),
)

# Either end of a connected datagram pair can still send to any named socket of the host, and `sendmsg` has to
# stay allowed for stream pairs between parent and child.
_DATAGRAMS = (SOCK_DGRAM, SOCK_RAW)

RESTRICTED: tuple[Rule, ...] = (
    *COMMON,
    *_LOOKING_INTO_OTHERS,
    ("connect", ALWAYS, ()),
    ("accept", ALWAYS, ()),
    ("accept4", ALWAYS, ()),
    ("bind", ALWAYS, ()),
    ("listen", ALWAYS, ()),
    ("getpeername", ALWAYS, ()),
    ("getsockname", ALWAYS, ()),
    ("shutdown", ALWAYS, ()),
    ("sendto", ALWAYS, ()),
    ("sendmmsg", ALWAYS, ()),
    ("recvmmsg", ALWAYS, ()),
    ("getsockopt", ALWAYS, ()),
    ("setsockopt", ALWAYS, ()),
    ("socket", FIRST_NOT, (AF_UNIX,)),
    ("socket", TYPE_IS, _DATAGRAMS),
    ("socketpair", FIRST_NOT, (AF_UNIX,)),
    ("socketpair", TYPE_IS, _DATAGRAMS),
)

PROXY_ROUTED: tuple[Rule, ...] = (
    *COMMON,
    *_LOOKING_INTO_OTHERS,
    ("socket", FIRST_NOT, (AF_INET, AF_INET6)),
    ("socketpair", FIRST_NOT, (AF_UNIX,)),
    ("socketpair", TYPE_IS, _DATAGRAMS),
)

# Where the network is open.  For a socket of a family that is not loaded the kernel starts modprobe, as root
# and outside.  AF_ALG is the kernel's cryptography; AF_VSOCK leads to the host of a virtual machine.
OPEN: tuple[Rule, ...] = (
    *COMMON,
    ("socket", FIRST_NOT, (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)),
    ("socketpair", FIRST_NOT, (AF_UNIX,)),
)

# Added where there are no namespaces: what Landlock does not govern, for all files and processes.
WITHOUT_NAMESPACES: tuple[Rule, ...] = (
    *((name, ALWAYS, ()) for name in ("chmod", "fchmod", "fchmodat", "fchmodat2")),
    *((name, ALWAYS, ()) for name in ("chown", "fchown", "lchown", "fchownat")),
    *((name, ALWAYS, ()) for name in ("utime", "utimes", "futimesat", "utimensat")),
    *((name, ALWAYS, ()) for name in ("setxattr", "lsetxattr", "fsetxattr", "setxattrat")),
    *((name, ALWAYS, ()) for name in ("removexattr", "lremovexattr", "fremovexattr", "removexattrat")),
    ("file_setattr", ALWAYS, ()),
    # Without an IPC namespace, queues, semaphores and shared memory are the host's.
    *((name, ALWAYS, ()) for name in ("shmget", "shmat", "shmctl")),
    *((name, ALWAYS, ()) for name in ("semget", "semop", "semctl", "semtimedop")),
    *((name, ALWAYS, ()) for name in ("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink")),
    # Other processes.  A pidfd can have any number, also 0, so no rule on the argument could help.
    *_LOOKING_INTO_OTHERS,
    *((name, ALWAYS, ()) for name in ("kcmp", "pidfd_getfd", "process_madvise", "process_mrelease")),
    ("setns", ALWAYS, ()),
    *((name, FIRST_NOT, (_ONESELF,)) for name in ("migrate_pages", "move_pages", "prlimit64")),
    *((name, FIRST_NOT, (_ONESELF,)) for name in ("sched_setaffinity", "sched_setattr")),
    *((name, FIRST_NOT, (_ONESELF,)) for name in ("sched_setparam", "sched_setscheduler")),
    *((name, SECOND_NOT, (_ONESELF,)) for name in ("setpriority", "ioprio_set")),
    ("ioctl", REQUEST_OUTSIDE, KNOWN_REQUESTS),
)

# The AUDIT_ARCH values that a filter sees.
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000  # set in the numbers of the x32 calls, which share the architecture of x86_64
NO_CALL = 0xFFFFFFFF  # what a debugger writes to skip a call: it has the x32 bit, but is no call
