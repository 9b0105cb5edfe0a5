"""What of the machine a sandbox root keeps away: devices, processes, settings, mounts, networks, ids."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import (
    FILTER_NONE,
    HIDDEN_DIRECTORY,
    NETWORK_HOST,
    READ,
    ROOT_EMPTY,
    ROOT_READ_ONLY,
    ROOT_WRITABLE,
    WRITE,
)
from tests.sandbox.view_scene import KERNELS, workspace
from tests.support.roots import FREE_UID, OLD_KERNEL, REFUSED, USERS, call, give, mount, plan, run

pytestmark = pytest.mark.parametrize("user", USERS)


@pytest.fixture
def ws(tmp_path: Path, user: int) -> Path:
    return workspace(tmp_path, user)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_devices_are_those_of_a_sandbox(user: int, kernel: Kernel | None) -> None:
    script = (
        "ls /dev; echo x > /dev/null && echo null; "
        "head -c 4 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c;"
        "cat /etc/group > /dev/full; echo z > /dev/shm/file && cat /dev/shm/file;"
        "stat -c %a /dev/shm; readlink /dev/fd"
    )
    outcome = run(plan(), script, user=user, kernel=kernel)
    devices = "core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
    assert outcome.out.split() == [*devices.split(), "null", "4", "4", "z", "1777", "/proc/self/fd"]
    assert outcome.err.count("No space left on device") == 1
    assert not Path("/dev/shm/file").exists()


@pytest.mark.parametrize("root", [ROOT_READ_ONLY, ROOT_WRITABLE, ROOT_EMPTY])
@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_is_made_beside_the_devices(user: int, kernel: Kernel | None, root: str) -> None:
    tried = {
        "/dev/x": "Read-only file system",
        "/dev/pts/x": "refused",
        "/dev/null": "written",
        "/dev/zero": "written",
        "/dev/shm/x": "written",
    }

    def write() -> dict[str, str]:
        seen = {}
        for path in tried:
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
                seen[path] = "written"
            except OSError as error:
                seen[path] = "refused" if path.startswith("/dev/pts") else str(error.strerror)
        removed = []
        for name in ("null", "shm", "fd"):
            try:
                os.rename(f"/dev/{name}", "/dev/shm/moved")
            except OSError:
                removed.append(name)
        assert removed == ["null", "shm", "fd"]
        os.mkdir("/dev/shm/folder")
        return seen

    assert call(plan(root=root), write, user=user, kernel=kernel).value == tried


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_terminals_are_new_ones(user: int, kernel: Kernel | None) -> None:
    code = "import os; a, b = os.openpty(); print(os.ttyname(b)); os.write(b, b'x'); print(os.read(a, 1))"
    if not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("no /usr/bin/python3 for the ordinary user to run")
    outcome = run(plan(), ["/usr/bin/python3", "-c", code], user=user, kernel=kernel)
    assert outcome.out == "/dev/pts/0\nb'x'\n", outcome


def test_shared_memory_of_the_host_can_be_given(user: int, tmp_path: Path) -> None:
    shm = Path("/dev/shm") / f"execserver-test-{os.getpid()}-{user}"
    shm.mkdir()
    try:
        give(shm, user)
        outcome = run(plan(mount(WRITE, shm)), f"echo x > {shm}/f; ls /dev/shm", user=user)
        assert (shm / "f").exists()
        assert outcome.out == f"{shm.name}\n"
    finally:
        (shm / "f").unlink(missing_ok=True)
        shm.rmdir()


@pytest.mark.parametrize("kernel", KERNELS)
def test_only_the_processes_inside_are_seen(user: int, kernel: Kernel | None) -> None:
    outcome = run(plan(), "ls /proc | grep -E '^[0-9]+$'", user=user, kernel=kernel)
    assert outcome.out.split()[0] == "1"
    assert len(outcome.out.split()) <= 5


@pytest.mark.parametrize(
    "what", ["environ", "maps", "mem", "stack", "root/", "cwd/", "fd/3", "exe", "map_files/"]
)
def test_the_first_process_shows_nothing_of_itself(user: int, what: str) -> None:
    outcome = run(
        plan(), f"if [ -d /proc/1/{what} ]; then ls /proc/1/{what}; else cat /proc/1/{what}; fi", user=user
    )
    assert outcome.out == ""
    assert "denied" in outcome.err or "not permitted" in outcome.err, outcome


@pytest.mark.parametrize("kernel", KERNELS)
def test_settings_of_the_host_cannot_be_changed(user: int, kernel: Kernel | None) -> None:
    names = ("sys/kernel/hostname", "sys/kernel/core_pattern", "sysrq-trigger", "irq/default_smp_affinity")
    present = [name for name in names if os.path.exists(f"/proc/{name}")]
    script = "; ".join(f"(: > /proc/{name}) 2>/dev/null && echo {name}" for name in present)
    assert run(plan(), f"{script}; echo done", user=user, kernel=kernel).out == "done\n"


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "attack",
    [
        "mount -o remount,bind,rw /",
        "umount -l WS/secret",
        "umount WS/.git",
        "mount --bind WS/.. WS",
        "mount -t tmpfs none /etc",
        "unshare -rm sh -c 'mount -o remount,bind,rw /; touch /etc/x'",
        "unshare -rm sh -c 'umount -l WS/secret; cat WS/secret/key'",
        "unshare -rm sh -c 'umount -l WS/.git; touch WS/.git/x'",
        "unshare -rm sh -c 'mount -o remount,bind,rw WS/.git; touch WS/.git/x'",
        "unshare -rm sh -c 'umount -l /proc && ls /proc/self'",
        "unshare -rm sh -c 'mount --move WS/secret /mnt; cat WS/secret/key'",
        "unshare -rm sh -c 'umount -l /dev && echo > /dev/kmsg'",
        "unshare -Um --keep-caps sh -c 'mount -o remount,bind,rw /; touch /etc/x'",
        "unshare -Um --keep-caps sh -c 'umount -l WS/secret; cat WS/secret/key'",
        "unshare -Um --keep-caps sh -c 'umount -l WS/.git; touch WS/.git/x'",
        "unshare -Um --keep-caps sh -c 'mount -o remount,bind,rw WS/.git; touch WS/.git/x'",
        "chmod 755 WS/secret; cat WS/secret/key",
        "unshare -UmC --keep-caps mount -t cgroup2 none /mnt",
        "unshare -rmC mount -t cgroup2 none /mnt",
        "unshare -UmC --keep-caps mount -t cgroup -o memory none /mnt",
        "unshare -UC true",
        "nsenter -t 1 -m true",
        "unshare -m true",
        "chroot / true",
    ],
)
def test_mounts_cannot_be_changed_from_inside(
    ws: Path, user: int, kernel: Kernel | None, attack: str
) -> None:
    view = plan(mount(WRITE, ws), mount(READ, ws / ".git"), mount(HIDDEN_DIRECTORY, ws / "secret"))
    outcome = run(view, attack.replace("WS", str(ws)), user=user, cwd=ws, kernel=kernel)
    assert not os.WIFSIGNALED(outcome.status)
    assert outcome.code not in (0, REFUSED), outcome
    assert "key" not in outcome.out.split()
    assert list((ws / ".git").iterdir()) == []


def test_a_sandbox_inside_a_sandbox_is_possible(ws: Path, user: int) -> None:
    if user == 0:
        pytest.skip("the kernel lets user 0 be mapped again only with CAP_SETFCAP, which is dropped")
    view = plan(mount(WRITE, ws), nesting=True)
    script = f"unshare -rm sh -c 'mount --bind {ws}/sub /mnt && touch /mnt/made && echo nested'"
    outcome = run(view, script, user=user, cwd=ws)
    assert outcome.out == "nested\n", outcome
    assert (ws / "sub" / "made").exists()


def test_a_network_of_its_own_has_loopback_only_and_the_hosts_is_the_hosts(user: int) -> None:
    count = "tail -n +3 /proc/net/dev | wc -l; readlink /proc/self/ns/net"
    own, namespace = run(plan(), count, user=user).out.split()
    assert (own, namespace != os.readlink("/proc/self/ns/net")) == ("1", True)
    host = run(plan(network=NETWORK_HOST, syscall_filter=FILTER_NONE), count, user=user).out.split()
    assert host[1] == os.readlink("/proc/self/ns/net")


def test_every_other_namespace_is_its_own(user: int) -> None:
    for name in ("user", "mnt", "pid", "ipc", "uts"):
        assert run(plan(), f"readlink /proc/self/ns/{name}", user=user).out.strip() != os.readlink(
            f"/proc/self/ns/{name}"
        )


def test_ids_are_the_callers_own_and_no_others(user: int) -> None:
    outcome = run(
        plan(), "id -u; id -g; cat /proc/self/uid_map /proc/self/gid_map /proc/self/setgroups", user=user
    )
    words = outcome.out.split()
    assert words == [str(user), str(user), *[str(user), str(user), "1"] * 2, "deny"]


def test_the_free_user_is_nobodys(user: int) -> None:
    assert f":{FREE_UID}:" not in Path("/etc/passwd").read_text()


MASKED = """
import os, sys
from execserver.sandbox.kernel.syscalls import Kernel
from tests.support.roots import become, plan, run
kernel = Kernel()
kernel.call("unshare", 0x20000)
kernel.call("mount", None, b"/", None, 0x44000, None)
kernel.call("mount", b"none", b"/proc/irq", b"tmpfs", 0, None)
outside, user, missing = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
inside = f"/proc/{outside}/root"
script = f"ls {inside}/tmp; cat /proc/{outside}/environ; echo x > {inside}{os.getcwd()}/out"
outcome = run(plan(), script + "; ls /proc | wc -l", user=user, missing=missing)
print(outcome.out, outcome.err)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mask a part of /proc")
@pytest.mark.parametrize("landlock", [True, False])
def test_a_machine_whose_proc_is_masked_gives_no_way_into_processes_outside(
    tmp_path: Path, user: int, landlock: bool
) -> None:
    give(tmp_path, user)
    missing = [] if landlock else OLD_KERNEL[5:]
    root = Path(__file__).parents[2]
    with in_the_background(user) as outside:
        command = [sys.executable, "-c", MASKED, str(outside), str(user), *missing]
        done = subprocess.run(
            command, cwd=tmp_path, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, check=True
        )
    assert not (tmp_path / "out").exists()
    assert done.stderr == ""
    shown, *refusals = done.stdout.splitlines()
    assert int(shown) > 0
    assert len([line for line in refusals if f"/proc/{outside}/" in line]) == 3


@contextmanager
def in_the_background(user: int) -> Iterator[int]:
    """Run a process of the user outside of every view; give its pid."""
    sleeper = subprocess.Popen(["sleep", "60"], user=user, group=user, extra_groups=[], env={"SECRET": "x"})
    try:
        yield sleeper.pid
    finally:
        sleeper.kill()
        sleeper.wait()
