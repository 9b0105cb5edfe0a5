from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from execserver.sandbox.kernel import mounts
from execserver.sandbox.kernel.mounts import NewMounts
from execserver.sandbox.kernel.mounts_old import OldMounts
from execserver.sandbox.kernel.namespaces import (
    NEW_MOUNTS,
    NEW_PIDS,
    NEW_USER,
    Identity,
    fork_into,
    map_own_ids,
)
from execserver.sandbox.kernel.syscalls import Kernel
from tests.support.roots import OLD_KERNEL, USERS, give, in_child

Tree = NewMounts | OldMounts
VARIANTS = [
    pytest.param(
        NewMounts,
        marks=pytest.mark.skipif(
            in_child(lambda: int(mounts.available(Kernel())) << 8).code == 0,
            reason="no mount API of Linux 5.12",
        ),
    ),
    OldMounts,
]


def in_namespace(make: type[Tree], act: Callable[[Tree], object], user: int) -> str:
    """Call `act` with an empty builder in new namespaces; return what it returned, as text."""

    def child() -> int:
        kernel, identity = Kernel(), Identity()
        pid, mapped = fork_into(kernel, NEW_USER | NEW_MOUNTS | NEW_PIDS)
        if pid == 0:
            try:
                if mapped:
                    map_own_ids(kernel, identity)
                os.write(1, repr(act(make(kernel))).encode())
            except OSError as error:
                os.write(1, repr(error).encode())
            finally:
                os._exit(0)
        return os.waitpid(pid, 0)[1]

    return in_child(child, user).out


def writable(path: str) -> object:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError as error:
        return error.errno
    return True


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("make", VARIANTS)
def test_a_folder_is_bound_writable_into_a_read_only_host(
    make: type[Tree], user: int, tmp_path: Path
) -> None:
    folder = tmp_path / "open folder\\with 'odd' name"
    folder.mkdir()
    give(tmp_path, user)

    def act(tree: Tree) -> object:
        root = tree.begin_host(read_only=True)
        source = tree.open_source(os.fsencode(folder))
        tree.bind(source, root, os.fsencode(folder), read_only=False)
        tree.enter(root)
        return [writable(f"{folder}/new"), writable(f"{tmp_path}/new"), writable("/etc/x")]

    assert in_namespace(make, act, user) == repr([True, errno.EROFS, errno.EROFS])


def cover(path: str) -> None:
    """Mount an empty file system, which no other namespace sees."""
    kernel = Kernel()
    mounts.make_private(kernel)
    kernel.call("mount", b"none", os.fsencode(path), b"tmpfs", 0, None)


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("make", VARIANTS)
def test_mounts_that_others_cover_are_passed_over(make: type[Tree], user: int, tmp_path: Path) -> None:
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    give(tmp_path, user)

    def act(tree: Tree) -> object:
        for path in (tmp_path / "outer" / "inner", tmp_path / "outer"):
            cover(str(path))
        # The same path, but no mount: the one at it lies below.
        (tmp_path / "outer" / "inner").mkdir()
        tree.enter(tree.begin_host(read_only=True))
        return [writable(f"{tmp_path}/outer/{name}") for name in ("x", "inner/x")]

    assert in_namespace(make, act, user) == repr([errno.EROFS, errno.EROFS])


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("make", VARIANTS)
def test_what_the_kernel_tells_of_descriptors_is_not_needed(
    make: type[Tree], user: int, tmp_path: Path
) -> None:
    """Before 5.14 it hides that (fdinfo) from a process that is not dumpable, unless root asks."""
    give(tmp_path, user)

    def act(tree: Tree) -> object:
        cover("/proc/self/fdinfo")
        root = tree.begin_host(read_only=True)
        tree.bind(tree.open_source(os.fsencode(tmp_path)), root, os.fsencode(tmp_path), read_only=False)
        tree.enter(root)
        return [os.listdir("/proc/self/fdinfo"), writable(f"{tmp_path}/new"), writable("/etc/x")]

    assert in_namespace(make, act, user) == repr([[], True, errno.EROFS])


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("make", VARIANTS)
def test_mounts_below_are_bound_and_restricted_too(make: type[Tree], user: int, tmp_path: Path) -> None:
    give(tmp_path, user)

    def act(tree: Tree) -> object:
        root = tree.begin_empty()
        for name in ("bound", "bound/inner"):
            os.mkdir(name, dir_fd=root)
            tree.tmpfs(root, b"/" + name.encode(), 0o777) if name == "bound" else None
        inner = tree.tmpfs(root, b"/bound/inner", 0o777)
        os.close(os.open("here", os.O_CREAT, dir_fd=inner))
        os.mkdir("copy", dir_fd=root)
        os.mkdir("proc", dir_fd=root)
        tree.proc(root, b"/proc")
        source = tree.open_in(root, b"/bound")
        tree.bind(source, root, b"/copy", read_only=True)
        tree.enter(root)
        return [os.path.exists("/copy/inner/here"), writable("/copy/inner/x"), writable("/copy/x")]

    assert in_namespace(make, act, user) == repr([True, errno.EROFS, errno.EROFS])


@pytest.mark.parametrize("make", VARIANTS)
@pytest.mark.parametrize("path", ["link", "link/inside", "folder/up"])
def test_a_link_anywhere_in_a_path_is_refused(make: type[Tree], path: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside").mkdir()
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "folder" / "up").symlink_to("..")
    give(tmp_path, USERS[-1])

    def act(tree: Tree) -> object:
        found = []
        for opener in (tree.open_source, lambda name: tree.open_in(os.open("/", os.O_PATH), name)):
            with pytest.raises(OSError) as caught:
                opener(os.fsencode(tmp_path / path))
            found.append(caught.value.errno)
        return found

    # A component after a link is no folder to the one, a link to the other.
    assert in_namespace(make, act, USERS[-1]) == repr([errno.ELOOP, errno.ELOOP])


@pytest.mark.parametrize("make", VARIANTS)
def test_steps_up_stay_below_the_root(make: type[Tree]) -> None:
    def act(tree: Tree) -> object:
        root = tree.begin_empty()
        try:
            opened = tree.open_in(root, b"/../../etc")
        except OSError as error:
            return error.errno in (errno.ENOENT, errno.EXDEV)
        return os.listdir(opened)

    assert in_namespace(make, act, USERS[-1]) == "True"


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("make", VARIANTS)
def test_devices_work_where_they_are_bound(make: type[Tree], user: int) -> None:
    def act(tree: Tree) -> object:
        root = tree.begin_empty()
        os.mkdir("dev", dir_fd=root)
        os.mkdir("proc", dir_fd=root)
        tree.proc(root, b"/proc")
        for name in ("null", "zero", "file"):
            os.close(os.open(f"dev/{name}", os.O_CREAT, dir_fd=root))
        dev = os.open("dev", os.O_PATH, dir_fd=root)
        tree.bind_device(b"/dev/null", dev, b"null")
        tree.bind_device(b"/dev/zero", dev, b"zero")
        with pytest.raises(OSError) as caught:
            tree.bind_device(b"/etc/passwd", dev, b"file")
        tree.enter(root)
        with open("/dev/zero", "rb") as zero, open("/dev/null", "wb") as null:
            null.write(b"x")
            return [zero.read(3), caught.value.errno]

    assert in_namespace(make, act, user) == repr([b"\0\0\0", errno.ENODEV])


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("make", VARIANTS)
def test_a_mount_becomes_read_only_afterwards(make: type[Tree], user: int) -> None:
    def act(tree: Tree) -> object:
        root = tree.begin_empty()
        os.mkdir("folder", dir_fd=root)
        mounted = tree.tmpfs(root, b"/folder", 0o700)
        os.mkdir("made", dir_fd=mounted)
        tree.read_only(mounted)
        tree.enter(root)
        return [os.listdir("/folder"), writable("/folder/x"), writable("/x")]

    assert in_namespace(make, act, user) == repr([["made"], errno.EROFS, True])


@pytest.mark.parametrize("make", VARIANTS)
def test_nothing_of_it_reaches_the_host(make: type[Tree], tmp_path: Path) -> None:
    before = Path("/proc/self/mountinfo").read_text()

    def act(tree: Tree) -> object:
        root = tree.begin_host(read_only=True)
        tree.tmpfs(root, os.fsencode(tmp_path), 0o777)
        tree.enter(root)
        return writable(f"{tmp_path}/x")

    assert in_namespace(make, act, os.geteuid()) == "True"
    assert Path("/proc/self/mountinfo").read_text() == before
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_that_lacks_a_call_lacks_the_api() -> None:
    for name in ("openat2", "open_tree", "move_mount", "fsopen", "mount_setattr"):
        assert mounts.available(Kernel((name,))) is False
    assert mounts.available(Kernel(OLD_KERNEL)) is False
