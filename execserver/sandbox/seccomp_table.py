"""The system call filters, as a table to be read (wire contract, the network rules of the sandbox).

A filter lists refused calls; every other call is allowed.  A refused call answers EPERM.  A rule may look at
arguments: `domain` is the first and `type` the second of `socket` and `socketpair`, the type without its
flags. Calls of a foreign architecture, x32 included, kill the process: their numbers mean something else.
"""

from __future__ import annotations

AF_UNIX = 1
AF_INET = 2
AF_INET6 = 10
SOCK_DGRAM = 2
SOCK_RAW = 3  # a Unix socket of this type is a datagram socket
TYPE_MASK = 0xF  # what is not a flag like SOCK_CLOEXEC

ALWAYS = "always"
DOMAIN_NOT = "domain not"  # refused unless the domain is one of the values
TYPE_IS = "type is"  # refused when the type is one of the values

# Looking into other processes, and rings that make system calls no filter sees.
_BOTH = (
    ("ptrace", ALWAYS, ()),
    ("process_vm_readv", ALWAYS, ()),
    ("process_vm_writev", ALWAYS, ()),
    ("io_uring_setup", ALWAYS, ()),
    ("io_uring_enter", ALWAYS, ()),
    ("io_uring_register", ALWAYS, ()),
)

# A member of a connected datagram pair can still send to any named socket of the host, and `sendmsg` has to
# stay allowed for stream pairs between parent and child.
_DATAGRAMS = (SOCK_DGRAM, SOCK_RAW)

RESTRICTED = (
    *_BOTH,
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
    ("socket", DOMAIN_NOT, (AF_UNIX,)),
    ("socket", TYPE_IS, _DATAGRAMS),
    ("socketpair", DOMAIN_NOT, (AF_UNIX,)),
    ("socketpair", TYPE_IS, _DATAGRAMS),
)

PROXY_ROUTED = (
    *_BOTH,
    ("socket", DOMAIN_NOT, (AF_INET, AF_INET6)),
    ("socketpair", DOMAIN_NOT, (AF_UNIX,)),
    ("socketpair", TYPE_IS, _DATAGRAMS),
)

Rule = tuple[str, str, tuple[int, ...]]

# Architecture as the filter sees it, and the numbers of the calls above.
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000  # set in the numbers of the x32 calls, which share the architecture of x86_64
NO_CALL = 0xFFFFFFFF  # what a debugger writes to skip a call; it has the bit and means nothing

NUMBERS = {
    "x86_64": {
        "ptrace": 101,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "io_uring_setup": 425,
        "io_uring_enter": 426,
        "io_uring_register": 427,
        "socket": 41,
        "connect": 42,
        "accept": 43,
        "sendto": 44,
        "shutdown": 48,
        "bind": 49,
        "listen": 50,
        "getsockname": 51,
        "getpeername": 52,
        "socketpair": 53,
        "setsockopt": 54,
        "getsockopt": 55,
        "accept4": 288,
        "recvmmsg": 299,
        "sendmmsg": 307,
    },
    "aarch64": {
        "ptrace": 117,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "io_uring_setup": 425,
        "io_uring_enter": 426,
        "io_uring_register": 427,
        "socket": 198,
        "socketpair": 199,
        "bind": 200,
        "listen": 201,
        "accept": 202,
        "connect": 203,
        "getsockname": 204,
        "getpeername": 205,
        "sendto": 206,
        "setsockopt": 208,
        "getsockopt": 209,
        "shutdown": 210,
        "accept4": 242,
        "recvmmsg": 243,
        "sendmmsg": 269,
    },
}
