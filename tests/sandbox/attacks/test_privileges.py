"""Capabilities, mounts, namespaces, devices, settings of the system, set-user-id programs."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.sandbox.attacks.ground import Ground

REFUSED = {"EPERM", "EACCES", "EROFS", "ENOSYS", "EINVAL", "EBUSY", "ENOENT", "ENODEV"}
MOUNTS = """
NONE = None
REMOUNT, BIND, REC, MOVE, PRIVATE = 32, 4096, 0x4000, 8192, 0x40000
def mount(source, target, kind=None, flags=0, data=None):
    return syscall(165, source, target.encode(), kind, flags, data)
def open_tree(path, flags):
    return syscall(428, -100, path.encode(), flags)
def attacks():
    return {
        "remount root": mount(b"none", "/", None, REMOUNT | BIND),
        "remount .git": mount(b"none", git, None, REMOUNT | BIND),
        "remount denied": mount(b"none", denied, None, REMOUNT | BIND),
        "remount out": mount(b"none", out, None, REMOUNT | BIND),
        "umount .git": syscall(166, git.encode(), 2),
        "umount denied": syscall(166, denied.encode(), 2),
        "umount key": syscall(166, key.encode(), 2),
        "umount ws": syscall(166, ws.encode(), 2),
        "umount /": syscall(166, b"/", 2),
        "umount proc": syscall(166, b"/proc", 2),
        "tmpfs over .git": mount(b"t", git, b"tmpfs"),
        "tmpfs over ws": mount(b"t", ws, b"tmpfs"),
        "bind out to ws": mount(out.encode(), ws, None, BIND | REC),
        "bind / to ws": mount(b"/", ws, None, BIND | REC),
        "move ws": mount(ws.encode(), ws + "/sub", None, MOVE),
        "private": mount(b"none", "/", None, PRIVATE | REC),
        "proc": mount(b"proc", ws + "/sub", b"proc"),
        "devpts": mount(b"devpts", ws + "/sub", b"devpts"),
        "pivot_root": syscall(155, b".", b"."),
        "chroot": syscall(161, b"."),
    }
def new_attacks():
    return {
        "open_tree clone": open_tree("/", 1),
        "open_tree clone git": open_tree(git, 1 | 0x8000),
        "fsopen": syscall(430, b"tmpfs", 0),
        "fspick": syscall(433, -100, b"/", 0),
        "mount_setattr": syscall(442, -100, git.encode(), 0, struct.pack("4Q", 0, 1, 0, 0), 32),
        "mount_setattr rec": syscall(442, -100, b"/", 0x8000, struct.pack("4Q", 0, 1, 0, 0), 32),
        "move_mount": syscall(429, -100, git.encode(), -100, (ws + "/sub").encode(), 0),
    }
"""


def assert_refused(found: dict[str, object], but: frozenset[str] = frozenset()) -> None:
    got_through = {name: how for name, how in found.items() if how not in REFUSED and name not in but}
    assert got_through == {}


def test_there_are_no_capabilities_and_no_new_ones(any_way: object, ground: Ground) -> None:
    code = """
lines = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
result = {name: lines[name].strip() for name in lines if name[:3] in ("Cap", "NoN", "Sec")}
"""
    found = ground.python(code)
    for name in ("CapPrm", "CapEff", "CapInh", "CapAmb"):
        assert int(found[name], 16) == 0, name
    if any_way.user == 0 or "landlock" not in str(any_way):  # type: ignore[attr-defined]
        assert int(found["CapBnd"], 16) == 0
    assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")


def test_mounts_stay_as_they_are(any_way: object, ground: Ground) -> None:
    assert_refused(ground.python(MOUNTS + "result = attacks()"))
    assert_refused(ground.python(MOUNTS + "result = new_attacks()"))
    ground.check_unharmed()


def test_a_nested_namespace_takes_nothing_away(any_way: object, ground: Ground) -> None:
    code = (
        MOUNTS
        + """
made = syscall(272, 0x10000000 | 0x20000)
uid = os.getuid()
if made == 0:
    tried(lambda: open("/proc/self/setgroups", "w").write("deny"))
    tried(lambda: open("/proc/self/uid_map", "w").write(f"0 {uid} 1"))
found = {name: how for name, how in {**attacks(), **new_attacks()}.items()
         if "remount" in name or name in ("umount .git", "umount denied", "umount key", "mount_setattr")}
found["write out"] = tried(lambda: open(out + "/f", "w").write("x"))
found["write .git"] = tried(lambda: open(git + "/config", "w").write("x"))
found["read denied"] = tried(lambda: open(denied + "/f").read())
found["read key"] = tried(lambda: open(key).read())
result = found
"""
    )
    found = ground.python(code)
    if "landlock" in str(any_way):
        found = {name: how for name, how in found.items() if name == "write out" or "mount" in name}
    assert_refused(found)
    ground.check_unharmed()


def test_a_whole_new_view_in_a_nested_namespace_shows_no_more(way: object, ground: Ground) -> None:
    """With rights over mounts of its own, a command may build what it likes, of what it can see."""
    code = (
        MOUNTS
        + """
uid = os.getuid()
made = syscall(272, 0x10000000 | 0x20000 | 0x20000000)
if made == 0:
    tried(lambda: open("/proc/self/setgroups", "w").write("deny"))
    tried(lambda: open("/proc/self/uid_map", "w").write(f"0 {uid} 1"))
    mount(b"none", "/", None, PRIVATE | REC)
    mount(b"t", ws + "/sub", b"tmpfs")
    for name in ("a", "b"):
        tried(os.mkdir, f"{ws}/sub/{name}")
    mount(b"/", ws + "/sub/a", None, BIND)
    mount(ws.encode(), ws + "/sub/b", None, BIND)
places = [f"{ws}/sub/a{denied}/f", f"{ws}/sub/b/denied/f", f"{ws}/sub/b/key", f"{ws}/sub/a{key}"]
result = [tried(lambda: open(place).read()) for place in places]
result += [tried(lambda: open(path, "w")) for path in (f"{ws}/sub/a{out}/f", f"{ws}/sub/b/.git/config")]
"""
    )
    for how in ground.python(code, ground.plan(nesting=True)):
        assert how in REFUSED | {"ENOTDIR"}, how
    ground.check_unharmed()


def test_control_groups_are_not_mounted(any_way: object, ground: Ground) -> None:
    """In a control group namespace of its own a command could write to its user's groups: the server's."""
    code = (
        MOUNTS
        + """
uid = os.getuid()
result = {}
for name, flags in (("cgroup", 0x02000000), ("all", 0x10000000 | 0x20000 | 0x02000000)):
    child = os.fork()
    if child == 0:
        syscall(272, flags)
        tried(lambda: open("/proc/self/setgroups", "w").write("deny"))
        tried(lambda: open("/proc/self/uid_map", "w").write(f"{uid} {uid} 1"))
        mount(b"none", "/", None, PRIVATE | REC)
        first = mount(b"c", ws + "/sub", b"cgroup2")
        second = mount(b"c", ws + "/sub", b"cgroup", 0, b"memory")
        os._exit((first == 0) | (second == 0) << 1)
    result[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    )
    assert set(ground.python(code).values()) == {0}


def test_keys_of_the_session_are_not_the_commands(any_way: object, ground: Ground) -> None:
    code = """
made = syscall(250, 0, -3, 0)
found = syscall(250, 10, -3, b"user", b"execserver-attack", 0)
result = {"search": found}
"""
    assert ground.python(code)["search"] in (
        "ENOKEY",
        "EACCES",
        "EPERM",
        "ENOSYS",
        "EKEYREVOKED",
        "EOPNOTSUPP",
    )


def test_files_are_not_opened_by_handle(way: object, ground: Ground) -> None:
    code = """
handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
mount_id = ctypes.c_int()
named = syscall(303, -100, out.encode() + b"/f", handle, ctypes.byref(mount_id), 0)
opened = {}
for name, flags in (("read", 0), ("write", 1)):
    for where in ("/", ws):
        at = os.open(where, os.O_RDONLY)
        opened[f"{name} from {where}"] = syscall(304, at, handle, flags)
result = opened
"""
    assert_refused(ground.python(code))


def test_devices_are_not_made_and_work_nowhere(way: object, ground: Ground) -> None:
    code = """
acts = {}
for kind, name in ((stat.S_IFBLK, "block"), (stat.S_IFCHR, "char")):
    for place in (ws, "/dev", "/dev/shm", "/tmp"):
        acts[f"{name} {place}"] = (os.mknod, f"{place}/{name}", kind | 0o666, os.makedev(1, 1))
for name in ("mem", "kmem", "vda", "sda", "kmsg", "port", "fuse", "kvm", "net/tun", "vhost-net", "uinput"):
    acts[name] = (os.open, f"/dev/{name}", os.O_RDWR)
result = outcomes(acts)
"""
    assert_refused(ground.python(code))
    ground.check_unharmed()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can put a device there")
def test_a_device_that_is_there_already_does_not_work(way: object, ground: Ground) -> None:
    node = ground.ws / "device"
    os.mknod(node, 0o20666, os.makedev(1, 5))  # the one that gives zeros: harmless, and open to all
    node.chmod(0o666)
    assert ground.run(f"head -c1 {node}").code != 0


def test_settings_of_the_system_stay(any_way: object, ground: Ground) -> None:
    code = """
def rewrite(name):
    opened = os.open("/proc/" + name, os.O_RDWR)
    return os.pwrite(opened, os.read(opened, 4096), 0)
names = ["kernel/core_pattern", "kernel/hostname", "kernel/modprobe", "kernel/panic", "kernel/ns_last_pid",
         "fs/file-max", "net/ipv4/ip_forward", "kernel/randomize_va_space", "vm/overcommit_memory"]
acts = {name: (rewrite, "sys/" + name) for name in names}
for name in ("sysrq-trigger", "sys/vm/drop_caches", "irq/default_smp_affinity", "mtrr",
             "scsi/scsi", "fs/jbd2", "bus/pci", "acpi/wakeup"):
    acts[name] = (os.open, "/proc/" + name, os.O_WRONLY)
acts["sysfs"] = (os.open, "/sys/kernel/uevent_helper", os.O_WRONLY)
acts["cgroup"] = (os.mkdir, "/sys/fs/cgroup/execserver-attack")
acts["memory cgroup"] = (os.mkdir, "/sys/fs/cgroup/memory/execserver-attack")
result = outcomes(acts)
result["sethostname"] = syscall(170, b"attacked", 8)
result["setdomainname"] = syscall(171, b"attacked", 8)
result["settimeofday"] = syscall(164, struct.pack("qq", 1, 1), None)
result["clock_settime"] = syscall(227, 0, struct.pack("qq", 1, 1))
result["swapon"] = syscall(167, b"/dev/null", 0)
result["acct"] = syscall(163, (ws + "/f").encode())
result["init_module"] = syscall(175, b"", 0, b"")
result["ioperm"] = syscall(173, 0, 1, 1)
result["quotactl"] = syscall(179, 0x800002 << 8, b"/dev/vda", 0, None)
"""
    found = ground.python(code)
    none = ("EISDIR", "ESRCH", "ENOTBLK")
    assert_refused(found, frozenset(name for name, how in found.items() if how in none))
    assert os.uname().nodename != "attacked"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make programs that belong to root")
def test_set_user_id_programs_give_nothing(any_way: object, ground: Ground) -> None:
    program = ground.ws / "id"
    shutil.copyfile(shutil.which("id") or "/usr/bin/id", program)
    os.chown(program, 0, 0)
    program.chmod(0o6755)
    assert ground.run(["./id", "-u"]).out.strip() == str(any_way.user)  # type: ignore[attr-defined]
    if any_way.user:  # type: ignore[attr-defined]
        assert ground.run(["su", "-c", "id"]).code != 0


def test_nobody_becomes_another_user(any_way: object, ground: Ground) -> None:
    code = """
result = {str(uid): tried(os.setresuid, uid, uid, uid) for uid in (0, 1, 1000, 65534) if uid != os.getuid()}
result |= {f"g{gid}": tried(os.setresgid, gid, gid, gid) for gid in (0, 1, 65534) if gid != os.getgid()}
result["groups"] = tried(os.setgroups, [0, 42])
"""
    assert_refused(ground.python(code))


def test_other_namespaces_are_not_entered(way: object, ground: Ground) -> None:
    code = """
result = {}
for kind in ("mnt", "user", "pid", "net", "ipc", "uts"):
    for pid in (1, "self"):
        try:
            opened = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
        except OSError as error:
            result[f"{kind} {pid}"] = errno.errorcode[error.errno]
        else:
            result[f"{kind} {pid}"] = syscall(308, opened, 0)
parent = os.open("/proc/self/ns/user", os.O_RDONLY)
result["parent"] = syscall(16, parent, 0xB702)
result["owner"] = syscall(16, os.open("/proc/self/ns/mnt", os.O_RDONLY), 0xB701)
"""
    found = ground.python(code)
    # Its own user namespace's descriptor opens no door: joining what one is in is refused.
    found.pop("owner")
    assert_refused(found)
