"""The guarded operations: the same as the plain ones, but for what the guard refuses."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from execserver.files import copy, metadata, opening, remove
from execserver.files.copy import CopyOptions
from execserver.files.walk import Walk, WalkOptions
from execserver.protocol.errors import RpcError
from execserver.sandbox.files.guard import Denied, PathGuard
from execserver.sandbox.files.operations import GuardedFiles
from execserver.sandbox.plan import SandboxPlan
from tests.files.tools import bound_socket, get, put
from tests.support.plain_workers import missing, plan

Tree = Callable[[bytes], bytes]


class Guarded:
    """Guarded operations for a plan; `close` gives back the guard's descriptor."""

    def __init__(self, view: SandboxPlan) -> None:
        self.files = GuardedFiles(PathGuard(view))

    def close(self) -> None:
        os.close(self.files.guard.root)


@pytest.fixture
def folder(tmp_path: os.PathLike[str]) -> bytes:
    return os.path.realpath(os.fsencode(tmp_path))


@pytest.fixture
def make() -> Iterator[Callable[[SandboxPlan], GuardedFiles]]:
    """Make guarded operations, whose guards are closed at the end."""
    made: list[Guarded] = []

    def make(view: SandboxPlan) -> GuardedFiles:
        made.append(Guarded(view))
        return made[-1].files

    yield make
    for one in made:
        one.close()


@pytest.fixture
def files(make: Callable[[SandboxPlan], GuardedFiles]) -> GuardedFiles:
    """Operations under a guard without rules of its own."""
    return make(plan())


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result, or what was raised; a descriptor is closed and told by its kind."""
    try:
        result = function(*arguments)
    except RpcError as error:
        return (error.code, error.message)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    if isinstance(result, int) and not isinstance(result, bool):
        status = os.fstat(result)
        os.close(result)
        return ("opened", status.st_dev, status.st_ino)
    return result


def tree(root: bytes) -> bytes:
    """Make one of everything a path can lead to."""
    os.makedirs(root + b"/d/sub/deep")
    os.mkdir(root + b"/empty")
    for name in (b"/f", b"/d/g", b"/d/sub/h", b"/.hidden"):
        put(root + name, name)
    os.chmod(root + b"/f", 0o640)
    os.mkfifo(root + b"/fifo")
    os.mkfifo(root + b"/d/fifo")
    for target, name in (
        (b"f", b"/l"),
        (b"d", b"/ld"),
        (b"nowhere", b"/dangling"),
        (b"loop", b"/loop"),
        (b"../f", b"/d/up"),
        (b"d/sub/../g", b"/around"),
        (b"/dev/null", b"/null"),
    ):
        os.symlink(target, root + name)
    return root


NAMES = [
    *(b"/f", b"/d", b"/l", b"/ld", b"/ld/g", b"/ld/sub/h", b"/dangling", b"/loop", b"/fifo", b"/d/up"),
    *(b"/around", b"/nothing", b"/nothing/x", b"/f/x", b"/null", b"/empty", b"/socket", b"/.hidden", b""),
    b"/" + b"n" * 300,
]


@pytest.mark.parametrize("name", NAMES)
def test_looking_and_opening_are_those_of_the_plain_operations(
    files: GuardedFiles, folder: bytes, name: bytes
) -> None:
    root = tree(folder + b"/t")
    with bound_socket(root + b"/socket"):
        path = root + name
        for plain, guarded in (
            (metadata.get_metadata, files.get_metadata),
            (metadata.canonicalize, files.canonicalize),
            (metadata.read_directory, files.read_directory),
            (opening.open_regular, files.open_regular),
            (opening.open_target, files.open_target),
        ):
            assert outcome(guarded, path) == outcome(plain, path), plain


@pytest.mark.parametrize("path", [b"/dev/null", b"/dev/zero", b"/dev", b"/", b"/proc", b"/proc/cpuinfo"])
def test_paths_outside_are_looked_at_like_all(files: GuardedFiles, path: bytes) -> None:
    assert outcome(files.get_metadata, path) == outcome(metadata.get_metadata, path)
    assert outcome(files.open_regular, path) == outcome(opening.open_regular, path)


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("name", [*NAMES, b"/a/b/c", b"/d/new", b"/dangling/x", b"/ld/new/x", b"/l/x"])
def test_directories_are_made_as_plainly(
    files: GuardedFiles, folder: bytes, name: bytes, recursive: bool
) -> None:
    left, right = tree(folder + b"/1"), tree(folder + b"/2")
    assert outcome(files.create_directory, left + name, recursive) == outcome(
        metadata.create_directory, right + name, recursive
    )
    assert names_below(left) == names_below(right)


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("name", [*NAMES, b"/l/", b"/ld/sub"])
def test_removing_is_that_of_the_plain_operation(
    files: GuardedFiles, folder: bytes, name: bytes, recursive: bool, force: bool
) -> None:
    left, right = tree(folder + b"/1"), tree(folder + b"/2")
    path = name.rstrip(b"/")
    assert outcome(files.remove, left + name, recursive, force) == outcome(
        remove.remove, right + path, recursive, force
    )
    assert names_below(left) == names_below(right)


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize(
    "target", [b"/new", b"/d", b"/f", b"/empty", b"/l", b"/dangling", b"/d/sub/in", b"/no/x"]
)
@pytest.mark.parametrize(
    "source", [b"/f", b"/d", b"/l", b"/ld", b"/dangling", b"/fifo", b"/nothing", b"/null"]
)
def test_copying_is_that_of_the_plain_operation(
    files: GuardedFiles, folder: bytes, source: bytes, target: bytes, recursive: bool
) -> None:
    left, right = tree(folder + b"/1"), tree(folder + b"/2")
    ours = outcome(files.copy, left + source, left + target, recursive, CopyOptions())
    theirs = outcome(copy.copy, right + source, right + target, recursive)
    assert repr(ours) == repr(theirs).replace(repr(right)[2:-1], repr(left)[2:-1])
    assert names_below(left) == names_below(right)


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("prune", [True, False])
@pytest.mark.parametrize("name", [b"", b"/ld", b"/f", b"/nothing", b"/d/sub"])
def test_walks_find_what_plain_walks_find(
    files: GuardedFiles, folder: bytes, name: bytes, follow: bool, prune: bool
) -> None:
    root = tree(folder + b"/t")
    os.symlink(b"..", root + b"/d/back")
    options = WalkOptions(5, 100, 100, follow, prune)

    def plainly(path: bytes) -> Walk:
        walk = Walk(options)
        walk.run(path)
        return walk

    ours = outcome(lambda: told(files.walk(root + name, options)))
    assert ours == outcome(lambda: told(plainly(root + name)))


def told(walk: Walk) -> object:
    return walk.entries, walk.errors, walk.truncated


def names_below(root: bytes) -> list[tuple[bytes, object]]:
    """Return every name below a folder with what it holds."""
    found: list[tuple[bytes, object]] = []
    for parent, folders, names in os.walk(root):
        for name in folders + names:
            path = os.path.join(parent, name)
            held: object = os.lstat(path).st_mode
            if os.path.islink(path):
                held = os.readlink(path)
            elif os.path.isfile(path):
                held = (held, get(path))
            found.append((os.path.relpath(path, root), held))
    return sorted(found)


def test_a_file_is_emptied_only_when_it_is_opened_to_be_replaced(files: GuardedFiles, folder: bytes) -> None:
    put(folder + b"/f", b"content")
    os.close(files.open_target(folder + b"/f"))
    assert get(folder + b"/f") == b"content"
    os.close(files.open_replace(folder + b"/f"))
    assert get(folder + b"/f") == b""
    assert outcome(files.open_replace, b"/dev/null") == (-32600, "path `/dev/null` is not a file")


def test_devices_that_do_something_are_neither_read_nor_written(files: GuardedFiles) -> None:
    for path in (b"/dev/tty", b"/dev/random", b"/dev/ptmx"):
        code, text = outcome(files.open_target, path)
        assert (code, text.startswith(f"path `{path.decode()}` is a device")) == (-32600, True)
        assert outcome(files.open_regular, path) == (-32600, f"path `{path.decode()}` is not a file")


@pytest.mark.parametrize("path", [b"/proc/sys/kernel/hostname", b"/proc/cpuinfo"])
def test_nothing_of_the_kernel_is_written(files: GuardedFiles, folder: bytes, path: bytes) -> None:
    os.symlink(path, folder + b"/l")
    for name in (path, folder + b"/l"):
        assert outcome(files.open_target, name) == "EROFS"
        assert outcome(files.open_replace, name) == "EROFS"
        put(folder + b"/f", b"x")
        assert outcome(files.copy, folder + b"/f", name, False, CopyOptions()) == "EROFS"


def test_copying_a_tree_makes_no_protected_name(
    make: Callable[[SandboxPlan], GuardedFiles], folder: bytes
) -> None:
    ws = folder + b"/ws"
    os.makedirs(ws + b"/sub")
    for source in (b"/with-directory/.git/hooks", b"/with-file", b"/with-link"):
        os.makedirs(folder + source)
    put(folder + b"/with-file/.git", b"gitdir: /x")
    os.symlink(b"/x", folder + b"/with-link/.git")
    files = make(plan(missing=missing(ws + b"/.git")))
    for source in (b"/with-directory", b"/with-file", b"/with-link"):
        assert outcome(files.copy, folder + source, ws, True, CopyOptions()) == "EROFS"
        assert outcome(files.copy, folder + source + b"/.git", ws + b"/.git", True, CopyOptions()) == "EROFS"
        files.copy(folder + source, ws + b"/sub", True, CopyOptions())
        files.remove(ws + b"/sub", recursive=True, force=False)
    assert not os.path.lexists(ws + b"/.git")


def test_copying_a_tree_over_a_link_makes_no_protected_name(
    make: Callable[[SandboxPlan], GuardedFiles], folder: bytes
) -> None:
    ws = folder + b"/ws"
    os.makedirs(ws + b"/sub")
    os.makedirs(folder + b"/from/to/.git")
    put(folder + b"/from/file", b"x")
    os.symlink(ws, ws + b"/sub/to")
    os.symlink(b"../.git", ws + b"/sub/file")
    files = make(plan(missing=missing(ws + b"/.git")))
    assert outcome(files.copy, folder + b"/from", ws + b"/sub", True, CopyOptions()) == "EROFS"
    os.unlink(ws + b"/sub/file")
    assert outcome(files.copy, folder + b"/from", ws + b"/sub", True, CopyOptions()) == "EROFS"
    assert not os.path.lexists(ws + b"/.git")
    assert get(ws + b"/sub/file") == b"x"


@pytest.fixture
def hidden(make: Callable[[SandboxPlan], GuardedFiles], folder: bytes) -> GuardedFiles:
    """Operations where `*.env` is denied, in a folder that holds one."""
    os.makedirs(folder + b"/t/d")
    put(folder + b"/t/d/a.env", b"secret")
    put(folder + b"/t/d/plain", b"x")
    return make(plan(globs=(folder + b"/**/*.env",)))


def test_what_a_pattern_denies_is_neither_read_nor_written_nor_removed(
    hidden: GuardedFiles, folder: bytes
) -> None:
    path = folder + b"/t/d/a.env"
    os.symlink(path, folder + b"/l")
    for name in (path, folder + b"/l"):
        assert outcome(hidden.open_regular, name) == "EACCES"
        assert outcome(hidden.open_target, name) == "EACCES"
        assert outcome(hidden.open_replace, name) == "EACCES"
    assert outcome(hidden.open_target, folder + b"/new.env") == "EACCES"
    assert outcome(hidden.create_directory, folder + b"/new.env", True) == "EACCES"
    assert outcome(hidden.create_directory, folder + b"/new.env/x", True) == "EACCES"
    assert outcome(hidden.remove, path, True, True) == "EACCES"
    assert outcome(hidden.copy, path, folder + b"/copied", False, CopyOptions()) == "EACCES"
    assert outcome(hidden.copy, folder + b"/t/d/plain", folder + b"/b.env", False, CopyOptions()) == "EACCES"
    assert get(path) == b"secret"
    assert sorted(os.listdir(folder)) == [b"l", b"t"]


def test_a_denied_file_looks_like_one_that_is_masked(hidden: GuardedFiles, folder: bytes) -> None:
    assert hidden.get_metadata(folder + b"/t/d/a.env") == (False, True, False, 0, 0)
    assert sorted(hidden.read_directory(folder + b"/t/d")) == [("a.env", False, True), ("plain", False, True)]
    walked = hidden.walk(folder + b"/t", WalkOptions(5, 100, 100, False, False))
    assert [uri.rsplit("/", 1)[1] for uri, _ in walked.entries] == ["d", "a.env", "plain"]
    assert walked.errors == []


def test_trees_with_something_denied_are_neither_copied_nor_removed_whole(
    hidden: GuardedFiles, folder: bytes
) -> None:
    assert outcome(hidden.copy, folder + b"/t", folder + b"/new", True, CopyOptions()) == "EACCES"
    assert outcome(hidden.remove, folder + b"/t", True, True) == "EACCES"
    assert get(folder + b"/t/d/a.env") == b"secret"
    assert not os.path.exists(folder + b"/new/d/a.env")


def test_a_walk_does_not_enter_processes(files: GuardedFiles) -> None:
    walked = files.walk(b"/proc", WalkOptions(1, 5000, 5000, True, False))
    entered = [uri for uri, _ in walked.entries if uri.startswith("file:///proc/1/")]
    assert entered == []
    assert ("file:///proc/1", "Permission denied (os error 13)") in walked.errors


def test_no_tree_of_a_process_is_copied(files: GuardedFiles, folder: bytes) -> None:
    for source in (b"/proc/self", b"/proc/self/fd", b"/proc/self/environ", b"/proc/self/cwd", b"/proc/1"):
        assert outcome(files.copy, source, folder + b"/x", True, CopyOptions()) == "EACCES"
    assert os.listdir(folder) == []


def test_an_error_tells_the_path_it_is_certainly_about(files: GuardedFiles, folder: bytes) -> None:
    put(folder + b"/f")
    os.symlink(b"f", folder + b"/l")
    for act in (files.open_regular, files.get_metadata, files.canonicalize):
        assert outcome(act, folder + b"/l/x") == "ENOTDIR"
        assert files.guard.at == folder + b"/f"
        assert outcome(act, folder + b"/none/x") == "ENOENT"
        assert files.guard.at == folder + b"/none"


def test_denials_name_the_real_path(make: Callable[[SandboxPlan], GuardedFiles], folder: bytes) -> None:
    files = make(plan(missing=missing(folder + b"/.git")))
    os.symlink(folder, folder + b"/alias")
    with pytest.raises(Denied) as denied:
        files.create_directory(folder + b"/alias/.git/x", recursive=True)
    assert denied.value.path == folder + b"/.git"
