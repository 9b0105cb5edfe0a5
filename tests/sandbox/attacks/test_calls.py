"""Calls and requests by which the kernel would act outside: keys, leases, priorities, terminals, devices."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import FILTER_OPEN, FILTER_RESTRICTED, NETWORK_HOST, NETWORK_NONE, SandboxPlan
from execserver.zygote.confinement import LANDLOCK
from tests.sandbox.attacks.ground import SECRET, Ground
from tests.support.roots import in_child
from tests.support.ways import Way

POLICIES = {"network-off": (NETWORK_NONE, FILTER_RESTRICTED), "network-on": (NETWORK_HOST, FILTER_OPEN)}
USER_KEYRING = -4
UNLINK, SEARCH, LINK, READ, JOIN, GET_PERSISTENT = 9, 10, 8, 11, 1, 22
KEY = f"execserver-attack-{os.getpid()}".encode()


@pytest.fixture(params=POLICIES)
def plan(request: pytest.FixtureRequest, ground: Ground) -> SandboxPlan:
    """The workspace policy, with the network and without."""
    return ground.plan(*POLICIES[request.param])


@pytest.fixture
def key(any_way: Way) -> Iterator[int]:
    """A key in the keyring of the way's user, which everything that this user runs may read."""
    kernel = Kernel()

    def add() -> int:
        try:
            number = kernel.call("add_key", b"user", KEY, SECRET.encode(), len(SECRET), USER_KEYRING)
        except OSError as error:
            return (error.errno or 1) << 8
        os.write(1, str(number).encode())
        return 0

    made = in_child(add, any_way.user)
    if made.status:
        pytest.skip(f"the kernel makes no key here: {os.strerror(made.code)}")
    yield int(made.out)

    def remove() -> int:
        # Fails when it is gone.
        kernel.call("keyctl", UNLINK, int(made.out), USER_KEYRING)
        return 0

    assert in_child(remove, any_way.user).status == 0


def test_keys_are_out_of_reach_and_no_helper_is_started(
    any_way: Way, ground: Ground, key: int, plan: SandboxPlan
) -> None:
    code = f"""
key, ring, name = {key}, {USER_KEYRING}, {KEY!r}
buffer = ctypes.create_string_buffer(100)
result = {{
    "request": syscall(249, b"user", name, None, ring),
    "up-call": syscall(249, b"dns_resolver", b"attacked.invalid", b"", ring),
    "add": syscall(248, b"user", b"mine", b"x", 1, ring),
    "search": syscall(250, {SEARCH}, ring, b"user", name, 0), "link": syscall(250, {LINK}, key, ring),
    "unlink": syscall(250, {UNLINK}, key, ring), "read": syscall(250, {READ}, key, buffer, 100),
    "join": syscall(250, {JOIN}, None), "persistent": syscall(250, {GET_PERSISTENT}, -1, ring),
    "seen": buffer.value.decode(),
}}
"""
    found = ground.python(code, plan)
    assert found.pop("seen") == ""
    assert set(found.values()) == {"ENOSYS"}, found


def test_no_lease_is_taken_on_files_of_others_nor_on_own_ones(
    any_way: Way, ground: Ground, plan: SandboxPlan
) -> None:
    """Who opens a file under a lease waits until it is given back, 45 s at most, and again each time."""
    code = """
import fcntl
F_SETLEASE, F_SETDELEG = 1024, 1040
result = {}
for name, path in (("out", out + "/f"), ("own", ws + "/f"), ("folder", out)):
    opened = os.open(path, os.O_RDONLY)
    for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK):
        result[f"{name} {kind}"] = tried(fcntl.fcntl, opened, F_SETLEASE, kind)
    result[f"{name} wide"] = syscall(72, opened, (1 << 32) + F_SETLEASE, fcntl.F_RDLCK)
    result[f"{name} delegation"] = syscall(72, opened, F_SETDELEG, struct.pack("IHH", 0, 0, 0))
"""
    assert set(ground.python(code, plan).values()) == {"EPERM"}


def test_priorities_of_a_user_or_a_group_are_not_set(any_way: Way, ground: Ground, plan: SandboxPlan) -> None:
    # To what they are: where it gets through, nobody comes to harm.
    nice = os.nice(0)
    code = (
        f"nice = {nice}"
        + """
result = {"user": tried(os.setpriority, os.PRIO_USER, 0, nice),
          "group": tried(os.setpriority, os.PRIO_PGRP, 0, nice),
          "named user": tried(os.setpriority, os.PRIO_USER, os.getuid(), nice),
          "io user": syscall(251, 3, 0, 0), "io group": syscall(251, 2, 0, 0),
          "io named user": syscall(251, 3, os.getuid(), 0)}
own = [tried(os.setpriority, os.PRIO_PROCESS, 0, nice + 5), syscall(251, 1, 0, (2 << 13) | 7),
       tried(os.nice, 1)]
result = [sorted(set(result.values())), own]
"""
    )
    assert ground.python(code, plan) == [["EPERM"], ["None", 0, str(min(nice + 6, 19))]]


def test_a_process_given_as_descriptor_0_is_not_the_caller(
    any_way: Way, ground: Ground, plan: SandboxPlan
) -> None:
    code = """
held, kept = os.pidfd_open(os.getpid()), os.open("f", os.O_RDONLY)
os.dup2(held, 0)
result = {"copy": syscall(438, 0, kept, 0), "advise": syscall(440, 0, struct.pack("QQ", 0, 0), 1, 20, 0),
          "reap": syscall(448, 0, 0)}
"""
    found = ground.python(code, plan)
    if any_way.back_end == LANDLOCK:
        assert set(found.values()) == {"EPERM"}
    else:
        assert found["copy"] > 0  # one's own processes are all there are


def test_terminals_are_not_typed_into(any_way: Way, ground: Ground, plan: SandboxPlan) -> None:
    code = """
TYPED = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C, "TIOCSETD": 0x5423, "TIOCEXCL": 0x540C, "TIOCCONS": 0x541D,
         "KDSKBSENT": 0x4B49, "KDSKBMODE": 0x4B45, "KDSETMODE": 0x4B3A, "VT_ACTIVATE": 0x5606,
         "VT_LOCKSWITCH": 0x560B}
opened = os.open("f", os.O_RDONLY)
result = {}
for name, request in TYPED.items():
    # The kernel takes the low half.
    for high in (0, 1 << 32, -1 << 32):
        result[f"{name} {high}"] = syscall(16, opened, request | high, b"x" * 128)
"""
    assert set(ground.python(code, plan).values()) == {"EPERM"}


def test_keys_of_encrypted_file_systems_stay(any_way: Way, ground: Ground, plan: SandboxPlan) -> None:
    code = """
opened = os.open(out, os.O_RDONLY)
requests = (0xC0506617, 0xC0406618, 0xC0406619)
result = [syscall(16, opened, request, ctypes.create_string_buffer(128)) for request in requests]
"""
    assert set(ground.python(code, plan)) == {"EPERM"}


REQUESTS = """
import fcntl, termios
WRITING = {"BTRFS_IOC_SUBVOL_CREATE": 0x5000940E, "BTRFS_IOC_SNAP_CREATE": 0x50009401,
    "BTRFS_IOC_SNAP_CREATE_V2": 0x50009417, "BTRFS_IOC_SNAP_DESTROY": 0x5000940F,
    "BTRFS_IOC_SUBVOL_SETFLAGS": 0x4008941A, "BTRFS_IOC_DEFRAG": 0x50009402,
    "FS_IOC_SETFLAGS": 0x40086602, "FS_IOC32_SETFLAGS": 0x40046602, "FS_IOC_SETVERSION": 0x40087602,
    "FS_IOC_FSSETXATTR": 0x401C5820, "FS_IOC_SET_ENCRYPTION_POLICY": 0x800C6613,
    "FS_IOC_GET_ENCRYPTION_PWSALT": 0x40106614, "FS_IOC_ENABLE_VERITY": 0x40806685,
    "EXT4_IOC_MIGRATE": 0x6609, "EXT4_IOC_ALLOC_DA_BLKS": 0x660C, "EXT4_IOC_MOVE_EXT": 0xC028660F,
    "EXT4_IOC_SWAP_BOOT": 0x6611, "EXT4_IOC_CLEAR_ES_CACHE": 0x6628, "F2FS_IOC_SET_PIN_FILE": 0x4004F50D,
    "F2FS_IOC_START_ATOMIC_WRITE": 0xF501, "FAT_IOCTL_SET_ATTRIBUTES": 0x40047211,
    "XFS_IOC_RESVSP": 0x40305828, "XFS_IOC_FREE_EOFBLOCKS": 0x8080583A, "FIFREEZE": 0xC0045877,
    "FITRIM": 0xC0185879, "FIDEDUPERANGE": 0xC0189436, "FS_IOC_SHUTDOWN": 0x8004587D,
    "CIFS_QUERY_INFO": 0xC018CF07, "BLKFLSBUF": 0x1261, "BLKDISCARD": 0x1277, "SG_IO": 0x2285,
    "LOOP_SET_FD": 0x4C00, "USBDEVFS_CONTROL": 0xC0185500}
"""


def test_without_mounts_only_known_requests_reach_files(
    landlock_way: Way, ground: Ground, plan: SandboxPlan
) -> None:
    code = (
        REQUESTS
        + """
result = {}
for path in (out, out + "/f", ws):
    opened = os.open(path, os.O_RDONLY)
    for name, request in WRITING.items():
        result[f"{name} {path}"] = syscall(16, opened, request, ctypes.create_string_buffer(4096))
opened = os.open("f", os.O_RDWR)
one, other = os.pipe()
os.write(other, b"abc")
count = ctypes.create_string_buffer(8)
works = [syscall(16, one, 0x541B, count), count.value,
         syscall(16, opened, 0x5451), syscall(16, opened, 0x5450),
         syscall(16, opened, 0x5401, ctypes.create_string_buffer(64)), syscall(16, opened, 2, count)]
result = [sorted(set(result.values())), [w.decode() if isinstance(w, bytes) else w for w in works]]
"""
    )
    assert ground.python(code, plan) == [["ENOTTY"], [0, "\x03", 0, 0, "ENOTTY", 0]]
    ground.check_unharmed()


def test_views_write_nothing_by_request_where_nothing_may_be_written(way: Way, ground: Ground) -> None:
    code = (
        REQUESTS
        + """
flags = ctypes.create_string_buffer(4096)
result = {}
for path in (out, out + "/f", git, git + "/config"):
    opened = os.open(path, os.O_RDONLY)
    result |= {f"{name} {path}": syscall(16, opened, request, flags) for name, request in WRITING.items()}
"""
    )
    found = ground.python(code, ground.plan(NETWORK_HOST, FILTER_OPEN))
    refused = {"EPERM", "EROFS", "ENOTTY", "EINVAL", "ENOTSUP", "EACCES", "EBADF", "ENOTDIR", "EFAULT"}
    got_through = {name.split()[0] for name, how in found.items() if how not in refused}
    # One drops what the kernel has remembered, the other is asked for nothing; both change nothing.
    assert got_through <= {"EXT4_IOC_CLEAR_ES_CACHE", "FIDEDUPERANGE"}, found
    ground.check_unharmed()


@pytest.fixture
def typed(any_way: Way) -> Iterator[str]:
    """The path of another terminal of the user, in which something has just been typed."""
    master, slave = os.openpty()
    path = os.ttyname(slave)
    if os.geteuid() == 0:
        os.fchown(slave, any_way.user, any_way.user)
    os.fchmod(slave, 0o600)
    os.write(master, SECRET.encode() + b"\n")
    yield path
    os.set_blocking(slave, False)
    assert os.read(slave, 100).decode().strip() == SECRET  # it is still there for who was meant
    for descriptor in (master, slave):
        os.close(descriptor)


def test_what_is_typed_elsewhere_is_not_read(
    any_way: Way, ground: Ground, typed: str, plan: SandboxPlan
) -> None:
    code = f"""
def look(path, mode):
    opened = os.open(path, mode | os.O_NOCTTY | os.O_NONBLOCK)
    return os.read(opened, 100) if mode != os.O_WRONLY else os.write(opened, b"attacked")
result = {{str(mode): tried(look, {typed!r}, mode) for mode in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR)}}
"""
    found = ground.python(code, plan)
    assert set(found.values()) <= {"EACCES", "ENOENT"}, found


def test_no_devices_but_the_harmless_ones_are_opened(any_way: Way, ground: Ground, plan: SandboxPlan) -> None:
    code = """
result = []
for folder, _, names in os.walk("/dev"):
    for name in names:
        path = os.path.join(folder, name)
        kind = stat.S_IFMT(os.lstat(path).st_mode)
        if kind in (stat.S_IFCHR, stat.S_IFBLK):
            how = tried(os.open, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            if how.isdigit():
                result.append(path)
"""
    harmless = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx")}
    if any_way.back_end != LANDLOCK:
        harmless.add("/dev/pts/ptmx")  # of the view's own terminals
    else:
        harmless.remove("/dev/ptmx")
    assert set(ground.python(code, plan)) <= harmless


def test_all_else_is_still_read(any_way: Way, ground: Ground, plan: SandboxPlan) -> None:
    code = """
result = [tried(lambda: len(os.listdir("/")) > 3), tried(lambda: "root" in open("/etc/passwd").read()),
          tried(lambda: open(out + "/f").read()), tried(lambda: open("/dev/zero", "rb").read(1)),
          tried(lambda: os.write(os.open("/dev/null", os.O_RDWR), b"x")),
          tried(lambda: len(os.listdir("/usr/bin")) > 3),
          tried(lambda: os.read(os.open("/dev/urandom", os.O_RDONLY), 8) != bytes(8))]
"""
    expected = ["True", "True", "kept as it is", r"b'\x00'", "1", "True", "True"]
    assert ground.python(code, plan) == expected


def test_the_calls_of_managers_are_refused(any_way: Way, ground: Ground, plan: SandboxPlan) -> None:
    code = """
result = {name: syscall(number, 0, 0, 0, 0, 0, 0) for name, number in {
    "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "fanotify_init": 300, "open_by_handle_at": 304,
    "quotactl": 179, "quotactl_fd": 443, "swapon": 167, "swapoff": 168, "acct": 163, "kexec_load": 246,
    "kexec_file_load": 320, "init_module": 175, "finit_module": 313, "delete_module": 176, "iopl": 172,
    "ioperm": 173, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427}.items()}
"""
    found = ground.python(code, plan)
    assert {name: how for name, how in found.items() if how != "EPERM"} == {}


def test_an_open_network_has_the_usual_sockets_only(any_way: Way, ground: Ground) -> None:
    """For a family that is not loaded the kernel runs modprobe, as root and outside."""
    code = """
def made(family, kind=1):
    how = syscall(41, family, kind, 0)
    if isinstance(how, int):
        os.close(how)
        return 0
    return how
usual = [(1, 1), (1, 2), (2, 1), (2, 2), (10, 1), (16, 3)]
result = {str(family): made(family) for family in range(50) if family not in (1, 2, 10, 16)}
result |= {str(family): made(family, kind) for family, kind in usual}
result["pair"] = syscall(53, 30, 1, 0, ctypes.create_string_buffer(8))
"""
    found = ground.python(code, ground.plan(NETWORK_HOST, FILTER_OPEN))
    assert {name for name, how in found.items() if how != "EPERM"} <= {"1", "2", "10", "16"}
    assert (found["1"], found["2"], found["16"], found["38"], found["40"]) == (0, 0, 0, "EPERM", "EPERM")
    assert found["10"] in (0, errno.errorcode[errno.EAFNOSUPPORT])


def test_an_own_trace_works_where_the_network_is_open(way: Way, ground: Ground) -> None:
    code = """
child = os.fork()
if child == 0:
    os._exit(0 if libc.ptrace(0, 0, 0, 0) == 0 else 9)
result = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    assert ground.python(code, ground.plan(NETWORK_HOST, FILTER_OPEN)) == 0
    assert ground.python(code) == 9
