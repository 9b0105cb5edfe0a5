"""Where a path leads inside a view, and what the guard refuses there."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.sandbox.files.guard import MAX_LINKS, READ, REMOVE, WRITE, Denied, PathGuard, is_process_name
from execserver.sandbox.files.worker_records import BY_MISSING, BY_PATTERN, BY_PROCFS
from execserver.sandbox.plan import SandboxPlan
from tests.files.tools import put
from tests.support.plain_workers import missing, plan


@pytest.fixture
def folder(tmp_path: os.PathLike[str]) -> bytes:
    return os.path.realpath(os.fsencode(tmp_path))


@pytest.fixture
def guard() -> Iterator[PathGuard]:
    """A guard without rules of its own."""
    with guarding(plan()) as made:
        yield made


class guarding:
    """A guard for a plan, closed at the end."""

    def __init__(self, plan: SandboxPlan) -> None:
        self._guard = PathGuard(plan)

    def __enter__(self) -> PathGuard:
        return self._guard

    def __exit__(self, *error: object) -> None:
        os.close(self._guard.root)


def found(
    guard: PathGuard, path: bytes, wanted: int = READ, *, follow: bool = True, make: bool = False
) -> bytes:
    with guard.find(path, wanted, follow, make) as place:
        assert place.path.endswith(b"/" + place.name) or place.name == b"."
        return place.path


def error_of(guard: PathGuard, path: bytes, wanted: int = READ, *, follow: bool = True) -> int:
    with pytest.raises(OSError) as failure:
        guard.find(path, wanted, follow).close()
    return failure.value.errno or 0


def test_links_of_all_kinds_are_followed_to_where_the_kernel_would_go(
    guard: PathGuard, folder: bytes
) -> None:
    os.makedirs(folder + b"/a/b")
    put(folder + b"/a/b/f", b"x")
    os.symlink(b"a/b", folder + b"/relative")
    os.symlink(folder + b"/a", folder + b"/absolute")
    os.symlink(b"../a/./b/", folder + b"/a/around")
    os.symlink(b"relative/f", folder + b"/chain")
    os.symlink(b"/", folder + b"/root")
    os.symlink(b"..", folder + b"/a/up")
    for path in (b"/relative/f", b"/absolute/b/f", b"/a/around/f", b"/chain", b"/a/up/a/b/f"):
        assert found(guard, folder + path) == os.path.realpath(folder + path) == folder + b"/a/b/f"
    for path in (b"/root" + folder + b"/a", b"/a/up/a", b"/absolute"):
        assert found(guard, folder + path) == folder + b"/a"
    for path in (b"/root", b"/a/up", b"/relative", b"/a/around"):
        assert found(guard, folder + path) == os.path.realpath(folder + path)
    assert found(guard, b"/../.." + folder) == folder


def test_the_last_link_is_left_alone_when_not_followed(guard: PathGuard, folder: bytes) -> None:
    os.symlink(b"nowhere", folder + b"/l")
    assert found(guard, folder + b"/l", follow=False) == folder + b"/l"
    assert found(guard, folder + b"/l/", follow=False) == folder + b"/l"
    assert found(guard, folder + b"/l") == folder + b"/nowhere"


def test_the_errors_are_the_kernels(guard: PathGuard, folder: bytes) -> None:
    put(folder + b"/f")
    os.symlink(b"f/", folder + b"/must-be-directory")
    os.symlink(b"loop", folder + b"/loop")
    os.symlink(b"missing/x", folder + b"/dangling")
    assert error_of(guard, folder + b"/f/x") == errno.ENOTDIR
    assert error_of(guard, folder + b"/must-be-directory") == errno.ENOTDIR
    assert error_of(guard, folder + b"/loop") == errno.ELOOP
    assert error_of(guard, folder + b"/loop/x") == errno.ELOOP
    assert error_of(guard, folder + b"/dangling") == errno.ENOENT
    assert error_of(guard, folder + b"/missing/x") == errno.ENOENT
    assert error_of(guard, folder + b"/" + b"n" * 256 + b"/x") == errno.ENAMETOOLONG


def test_as_many_links_are_followed_as_the_kernel_follows(guard: PathGuard, folder: bytes) -> None:
    put(folder + b"/0", b"x")
    for number in range(MAX_LINKS + 1):
        os.symlink(b"%d" % number, folder + b"/%d" % (number + 1))
    assert found(guard, folder + b"/%d" % MAX_LINKS) == folder + b"/0"
    assert error_of(guard, folder + b"/%d" % (MAX_LINKS + 1)) == errno.ELOOP


def test_missing_directories_are_made_only_where_the_caller_wrote_them(
    guard: PathGuard, folder: bytes
) -> None:
    assert found(guard, folder + b"/a/b/c", WRITE, make=True) == folder + b"/a/b/c"
    assert os.listdir(folder + b"/a/b") == []
    os.symlink(b"nowhere", folder + b"/l")
    with pytest.raises(FileExistsError):
        guard.find(folder + b"/l/x", WRITE, make=True).close()
    assert not os.path.lexists(folder + b"/nowhere")


def test_a_protected_missing_name_cannot_be_made_by_any_way_to_it(folder: bytes) -> None:
    ws = folder + b"/ws"
    os.makedirs(ws + b"/sub")
    os.symlink(ws, folder + b"/alias")
    os.symlink(b".git", ws + b"/link")
    os.symlink(b"../.git/hooks", ws + b"/sub/deep")
    with guarding(plan(missing=missing(ws + b"/.git"))) as guard:
        for path in (b"/ws/.git", b"/ws/.git/x", b"/alias/.git", b"/ws/link", b"/ws/link/x", b"/ws/sub/deep"):
            with pytest.raises(Denied) as denied:
                guard.find(folder + path, WRITE).close()
            assert (denied.value.errno, denied.value.path) == (errno.EROFS, ws + b"/.git")
            assert denied.value.reason == BY_MISSING
            assert error_of(guard, folder + path) == errno.ENOENT
        assert found(guard, ws + b"/sub/.git", WRITE) == ws + b"/sub/.git"
        assert found(guard, ws + b"/.gitignore", WRITE) == ws + b"/.gitignore"
        assert found(guard, ws + b"/link", WRITE, follow=False) == ws + b"/link"


def test_a_protected_name_that_appears_later_stays_as_if_it_were_missing(folder: bytes) -> None:
    with guarding(plan(missing=missing(folder + b"/.git"))) as guard:
        assert error_of(guard, folder + b"/.git", REMOVE) == errno.ENOENT
        os.makedirs(folder + b"/.git/hooks")
        assert error_of(guard, folder + b"/.git/hooks") == errno.ENOENT
        assert error_of(guard, folder + b"/.git/hooks/x", WRITE) == errno.EROFS
        assert error_of(guard, folder + b"/.git", REMOVE, follow=False) == errno.EROFS


def test_a_protected_name_is_known_by_its_directory_and_by_its_path(folder: bytes) -> None:
    ws = folder + b"/ws"
    os.mkdir(ws)
    with guarding(plan(missing=missing(ws + b"/.git"))) as guard:
        os.rename(ws, folder + b"/moved")
        assert error_of(guard, folder + b"/moved/.git", WRITE) == errno.EROFS
        os.mkdir(ws)
        assert error_of(guard, ws + b"/.git", WRITE) == errno.EROFS
        shutil.rmtree(folder + b"/moved")


PROCESS_PATHS = [
    b"/proc/%s/%s" % (process, name)
    for process in (b"self", b"thread-self", b"1", b"%d" % os.getpid())
    for name in (
        b"environ",
        b"mem",
        b"maps",
        b"fd",
        b"fd/0",
        b"root",
        b"root/etc/passwd",
        b"cwd",
        b"exe",
        b"task",
    )
]


@pytest.mark.parametrize("path", [*PROCESS_PATHS, b"/proc/self", b"/proc/thread-self", b"/proc/1"])
def test_nothing_of_a_process_is_found(guard: PathGuard, folder: bytes, path: bytes) -> None:
    os.symlink(path, folder + b"/l")
    os.symlink(b"../" * 40 + b"." + path, folder + b"/up")
    for spelled in (path, folder + b"/l", folder + b"/up", b"/proc/../" + path, b"/dev/../" + path):
        for wanted in (READ, WRITE):
            with pytest.raises(Denied) as denied:
                guard.find(spelled, wanted).close()
            assert (denied.value.errno, denied.value.reason) == (errno.EACCES, BY_PROCFS)


def test_the_rest_of_procfs_is_there(guard: PathGuard) -> None:
    assert found(guard, b"/proc/cpuinfo") == b"/proc/cpuinfo"
    assert found(guard, b"/proc/sys/kernel/ostype") == b"/proc/sys/kernel/ostype"
    assert error_of(guard, b"/proc/mounts") == errno.EACCES
    assert [is_process_name(name) for name in (b"self", b"12", b"sys", b"12a")] == [True, True, False, False]


def test_a_descriptor_of_a_process_is_refused_however_it_was_opened(guard: PathGuard) -> None:
    for path in (b"/proc/self/status", b"/proc/1/comm"):
        fd = os.open(path, os.O_RDONLY)
        try:
            with pytest.raises(Denied):
                guard.check_opened(fd, path)
        finally:
            os.close(fd)
    fd = os.open(b"/proc/cpuinfo", os.O_RDONLY)
    guard.check_opened(fd, b"/proc/cpuinfo")
    os.close(fd)


def test_patterns_deny_but_for_what_a_deeper_rule_allows(folder: bytes) -> None:
    view = SandboxPlan(
        "read-only", globs=(folder + b"/**/*.env", folder + b"/closed"), writable=(folder + b"/closed/open",)
    )
    with guarding(view) as guard:
        for path in (b"/a.env", b"/x/y/.env", b"/a.env/below", b"/closed", b"/closed/x"):
            assert guard.hides(folder + path)
            with pytest.raises(Denied) as denied:
                guard.check_pattern(folder + path)
            assert (denied.value.errno, denied.value.reason) == (errno.EACCES, BY_PATTERN)
        for path in (b"/a.envx", b"/env", b"", b"/closed/open", b"/closed/open/x"):
            guard.check_pattern(folder + path)


def test_links_of_strangers_in_shared_directories_are_not_followed(
    guard: PathGuard, folder: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkdir(folder + b"/shared")
    os.chmod(folder + b"/shared", 0o1777)
    put(folder + b"/f", b"x")
    os.symlink(b"../f", folder + b"/shared/l")
    assert found(guard, folder + b"/shared/l") == folder + b"/f"
    monkeypatch.setattr(guard, "_strict_links", True)
    monkeypatch.setattr("execserver.sandbox.files.guard.os.geteuid", lambda: os.getuid() + 1)
    os.chmod(folder + b"/shared", 0o1777)
    if os.getuid() == 0:
        os.chown(folder + b"/shared", 1, 1)
        assert error_of(guard, folder + b"/shared/l") == errno.EACCES
    assert found(guard, folder + b"/shared/l", follow=False) == folder + b"/shared/l"


def test_deep_and_long_ways_leave_no_descriptor_open(guard: PathGuard, folder: bytes) -> None:
    before = len(os.listdir("/proc/self/fd"))
    deep = folder + b"/d" * 300
    found(guard, deep, WRITE, make=True)
    assert found(guard, deep) == deep
    assert error_of(guard, deep + b"/x/y") == errno.ENOENT
    assert len(os.listdir("/proc/self/fd")) == before


NAMES = st.sampled_from([b"a", b"b", b"c"])
TARGETS = st.lists(st.sampled_from([b"a", b"b", b"c", b"..", b".", b""]), min_size=1, max_size=4).map(
    b"/".join
)
TREES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=3).map(b"/".join),
    st.one_of(st.just("file"), st.just("folder"), TARGETS, TARGETS.map(lambda target: b"ROOT/" + target)),
    max_size=9,
)
PATHS = st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=5).map(b"/".join)


def grow(root: bytes, tree: dict[bytes, str | bytes]) -> None:
    """Make what of a tree can be made, shorter paths first."""
    for path, kind in sorted(tree.items()):
        where = root + b"/" + path
        if not os.path.realpath(os.path.dirname(where)).startswith(root):
            continue  # a link made before leads out of the tree, and nothing of it belongs there
        try:
            os.makedirs(os.path.dirname(where), exist_ok=True)
            if kind == "file":
                os.close(os.open(where, os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_NOFOLLOW, 0o600))
            elif kind == "folder":
                os.mkdir(where)
            elif isinstance(kind, bytes) and kind:
                os.symlink(kind.replace(b"ROOT", root), where)
        except OSError:
            continue  # something else is there


@pytest.mark.timeout(600)  # many trees in a long run
@given(tree=TREES, paths=st.lists(PATHS, min_size=1, max_size=5))
def test_every_path_leads_where_the_kernel_says(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[bytes, str | bytes], paths: list[bytes]
) -> None:
    root = os.path.realpath(os.fsencode(tmp_path_factory.mktemp("tree")))
    grow(root, tree)
    with guarding(plan()) as guard:
        for path in paths:
            full = root + b"/" + path
            try:
                fd = os.open(full, os.O_PATH)
                expected: object = os.readlink(b"/proc/self/fd/%d" % fd)
                os.close(fd)
            except OSError as error:
                expected = error.errno
            try:
                with guard.find(full, READ) as place:
                    place.status()
                    ours: object = place.path
            except OSError as error:
                ours = error.errno
            assert ours == expected, path
