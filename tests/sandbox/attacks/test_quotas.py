"""What the kernel counts for a user or the machine: no command takes all of it."""

from __future__ import annotations

import resource

import pytest

from tests.sandbox.attacks.ground import Ground
from tests.support.ways import Way

NAMESPACES = """
import resource
ENTERED = {"mnt": 0x20000, "uts": 0x4000000, "ipc": 0x8000000}
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
limits = {name[4:-11]: int(open("/proc/sys/user/" + name).read())
    for name in os.listdir("/proc/sys/user") if name.endswith("_namespaces")}
assert syscall(272, 0x10000000) == 0
result, kept = {"limits": limits}, []
for kind, flag in ENTERED.items():
    for made in range(3000):
        how = syscall(272, flag)
        if how != 0:
            break
        kept.append(os.open("/proc/self/ns/" + kind, os.O_RDONLY))
    result[kind] = made, how
"""


def test_namespaces_that_a_command_keeps_leave_others_theirs(way: Way, ground: Ground) -> None:
    ground.need_user_namespaces()
    files, hard = 3200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard * 3 // 4 < files:  # of few, commands get three quarters
        pytest.skip(f"the hard limit of open files here is {hard}, and a command would need {files}")
    found = ground.python(NAMESPACES)
    limits = found.pop("limits")
    needed = {"user", "mnt", "pid", "net", "ipc", "uts"}
    assert {kind: limits[kind] for kind in needed} == dict.fromkeys(needed, 1024)
    assert limits["cgroup"] == 0
    for made, how in found.values():
        assert 900 < made <= 1024, found
        assert how == "ENOSPC"


AIO = """
made, how = 0, 0
while made < 5 and how == 0:
    how = syscall(206, 128, ctypes.byref(ctypes.c_ulong(0)))
    made += how == 0
result = made, how
"""


def test_asynchronous_requests_are_the_machines(any_way: Way, ground: Ground) -> None:
    assert ground.python(AIO) == [0, "ENOSYS"]
