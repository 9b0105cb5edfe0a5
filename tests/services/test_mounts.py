"""Which paths are certainly local."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.services.mounts import LOCAL_TYPES, MountTable, parse_mounts
from tests.support.source import ROOT

TABLE = rb"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw
40 27 0:50 / /mnt/with\040space rw - fuse.sshfs host:/ rw
41 27 0:51 / /mnt/back\134slash rw - nfs4 server:/ rw
"""
CLONE_NEWNS = 0x20000
CLONE_NEWUSER = 0x10000000
MS_REC_PRIVATE = 0x4000 | 0x40000


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[list[MountTable]]:
    """A list whose tables are closed after the test."""
    made: list[MountTable] = []
    yield made
    for table in made:
        table.close()


class Mounts:
    """A mount table read from a file of the test's own: everything but `slow` is local."""

    def __init__(self, folder: Path, tables: list[MountTable], *slow_points: bytes) -> None:
        lines = [b"1 0 254:0 / / rw - ext4 /dev/vda rw"]
        lines += [b"2 1 0:99 / %b rw - fuse.x x rw" % point.replace(b" ", b"\\040") for point in slow_points]
        (folder / "mountinfo").write_bytes(b"\n".join(lines) + b"\n")
        # An ordinary file never reports a change.
        self.table = MountTable(os.fsencode(folder / "mountinfo"))
        tables.append(self.table)


def test_a_table_is_parsed_with_its_escapes() -> None:
    assert parse_mounts(TABLE) == [
        (os.makedev(0, 21), b"/proc", b"proc"),
        (os.makedev(254, 0), b"/", b"ext4"),
        (os.makedev(0, 50), b"/mnt/with space", b"fuse.sshfs"),
        (os.makedev(0, 51), b"/mnt/back\\slash", b"nfs4"),
    ]


def test_the_kernels_own_table_is_read(tables: list[MountTable]) -> None:
    table = MountTable()
    tables.append(table)
    assert table.is_local(b"/proc/self/status")
    assert table.is_local_device(os.stat("/proc").st_dev)
    assert not table.is_local_device(2**40)


def test_without_slow_mounts_every_path_is_local(tmp_path: Path, tables: list[MountTable]) -> None:
    table = Mounts(tmp_path, tables).table
    assert table.all_local()
    assert table.is_local(b"/any/thing")
    assert table.is_local(b"/")


def test_with_a_slow_mount_paths_apart_from_it_are_local(tmp_path: Path, tables: list[MountTable]) -> None:
    slow = os.fsencode(tmp_path / "slow")
    folder = os.fsencode(tmp_path)
    table = Mounts(tmp_path, tables, slow).table
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("")
    assert not table.all_local()
    for path in (folder + b"/d/f", folder + b"/d", folder + b"/missing/x", folder + b"/d/f/x", b"/"):
        assert table.is_local(path), path
    for path in (slow, slow + b"/x/y"):
        assert not table.is_local(path), path
    assert table.is_local(slow + b"er")


def test_with_a_slow_mount_a_link_on_the_way_is_not_certain(tmp_path: Path, tables: list[MountTable]) -> None:
    table = Mounts(tmp_path, tables, b"/slow").table
    (tmp_path / "d").mkdir()
    (tmp_path / "l").symlink_to("d")
    (tmp_path / "d" / "l").symlink_to("/slow")
    assert not table.is_local(os.fsencode(tmp_path / "l" / "f"))
    assert not table.is_local(os.fsencode(tmp_path / "d" / "l"))
    assert not table.is_local(os.fsencode(tmp_path / ("n" * 300)))


def test_below_a_slow_root_nothing_is_local(tmp_path: Path, tables: list[MountTable]) -> None:
    table = Mounts(tmp_path, tables, b"/").table
    assert not table.is_local(b"/")
    assert not table.is_local(os.fsencode(tmp_path))


def test_without_a_table_nothing_is_certain(tmp_path: Path, tables: list[MountTable]) -> None:
    table = MountTable(os.fsencode(tmp_path / "missing"))
    tables.append(table)
    assert not table.is_local(b"/")
    assert not table.all_local()
    assert not table.is_local_device(os.stat("/").st_dev)
    closed = MountTable()
    closed.close()
    closed.close()
    assert not closed.is_local(b"/")


def test_what_is_served_over_a_network_or_by_a_program_is_not_local() -> None:
    slow = "nfs nfs4 cifs smb3 9p ceph lustre afs gfs2 ocfs2 autofs fuse fuseblk fuse.sshfs virtiofs unknown"
    assert LOCAL_TYPES.isdisjoint(slow.encode().split())


def test_a_mount_is_noticed_at_once(tmp_path: Path) -> None:
    if in_a_process("enter_mount_namespace()"):
        pytest.skip("mount namespaces are refused to this user")
    assert in_a_process(f"sys.exit(not sees_changes({os.fsencode(tmp_path)!r}))") == 0


def in_a_process(code: str) -> int:
    """Run a statement that uses this module in a process of its own; return the exit status."""
    lines = f"import sys\nfrom {__name__} import *\n{code}\n"
    done = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, stderr=subprocess.DEVNULL, check=False)
    return done.returncode


def sees_changes(point: bytes) -> bool:
    """Mount and unmount something in an own namespace, and tell whether the table followed."""
    enter_mount_namespace()
    libc = ctypes.CDLL(None, use_errno=True)
    # A file system that is not known counts as slow: here the one that is about to be mounted.
    table = MountTable(local_types=LOCAL_TYPES - {b"ramfs"})
    before = table.is_local(point)
    mounted = libc.mount(b"none", point, b"ramfs", 0, None) == 0
    between = table.is_local(point)
    unmounted = libc.umount2(point, 2) == 0
    return before and mounted and not between and unmounted and table.is_local(point)


def enter_mount_namespace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    flags = CLONE_NEWNS if os.geteuid() == 0 else CLONE_NEWNS | CLONE_NEWUSER
    if libc.unshare(flags) or libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "no mount namespace")
