"""Nothing of what somebody has put where our tree would lie ever runs, and nobody's locks hold a start up.

Whoever plants here is the same user and writes to all temporary folders: as a command does under Landlock or
with full access, and as the sandbox of any other program lets it.  What our views close to commands:
tests/sandbox/attacks/test_program_files.py.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.packaging.test_tree import payload_of
from tests.support.one_file import Box, Done, is_version
from tools.freeze import pyz_main

PROMPT_S = 20  # a first start on a busy machine; what waits for a lock, a pipe or a lease takes for ever


def name_of_tree(box: Box) -> str:
    if box.program.suffix == ".pyz":
        with zipfile.ZipFile(box.program) as packed:
            lines = packed.read(pyz_main.TREES_FILE).decode().splitlines()
        return dict(line.split() for line in lines)[pyz_main.tag()]
    return payload_of(box.program).hash


class Planter:
    """Puts programs into trees that tell that they have run."""

    def __init__(self, box: Box, folder: Path, copies: Path | None = None) -> None:
        """Trees that the program has unpacked are copied from and to `copies`, if that is given."""
        self.box = box
        self._copies = copies
        self.told = folder / "has-run"
        self.temporary = box.temporary / f"execserver-{os.geteuid()}"
        self.name = name_of_tree(box)

    def script(self) -> bytes:
        if self.box.program.suffix == ".pyz":
            return f"open({str(self.told)!r}, 'w')\n".encode()
        return f"#!/bin/sh\n: >'{self.told}'\n".encode()

    def first(self, tree: Path) -> Path:
        """Return the file of a tree that would be executed first."""
        if self.box.program.suffix == ".pyz":
            return tree / "boot.py"
        found = list((tree / "lib").glob("ld-*"))
        return found[0] if found else tree / "lib" / "ld-linux-x86-64.so.2"

    def plant(self, place: Path) -> Path:
        """Make a whole tree of strangers in a place."""
        tree = place / self.name
        first = self.first(tree)
        first.parent.mkdir(parents=True, mode=0o700)
        for folder in (place, tree):
            folder.chmod(0o700)
        first.write_bytes(self.script())
        first.chmod(0o700)
        return tree

    def start(self, **variables: str) -> Done:
        """Start the program without a home."""
        started = time.monotonic()
        del self.box.variables["HOME"]
        done = self.box.run(("--version",), **variables)
        assert time.monotonic() - started < PROMPT_S
        self.box.variables["HOME"] = str(self.box.home)
        return done

    def check(self, done: Done) -> None:
        """Fail unless the program itself has run, and nothing else."""
        assert done.stdout.startswith(b"execserver "), done.stderr
        assert done.returncode == 0
        assert not self.told.exists()

    def own_tree(self) -> Path:
        """Return the tree that the program has in the temporary folder, where it takes it for its own."""
        tree, copy = self.temporary / self.name, self._copies and self._copies / self.name
        if copy is None or not copy.exists():
            self.check(self.start())
            if copy is not None:
                shutil.copytree(tree, copy, symlinks=True)
            return tree
        # Unpacking it waits for the disk, and so for all that others write to it.
        shutil.copytree(copy, tree, symlinks=True)
        self.temporary.chmod(0o700)
        identity = tree.stat().st_ino
        self.check(self.start())
        assert tree.stat().st_ino == identity, "a copy is not unpacked anew"
        return tree


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for trees as the programs unpack them."""
    return tmp_path_factory.mktemp("copies")


@pytest.fixture
def planter(light: Box, tmp_path: Path, copies: Path) -> Planter:
    """The planter and a program that has not been started yet."""
    return Planter(light, tmp_path, copies / light.program.name)


@contextmanager
def locked(*paths: Path) -> Iterator[None]:
    """Hold files and folders locked exclusively, as a stranger."""
    held = [
        os.open(path, os.O_RDONLY if path.is_dir() else os.O_WRONLY | os.O_CREAT, 0o600) for path in paths
    ]
    try:
        for descriptor in held:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)


def test_with_an_empty_cache_no_other_place_is_looked_at(planter: Planter) -> None:
    planter.plant(planter.temporary)
    done = planter.box.run()
    planter.check(done)
    assert is_version(done)
    assert planter.box.tree.name == planter.name


def test_after_an_upgrade_no_other_place_is_looked_at(planter: Planter) -> None:
    planter.box.run()
    planter.box.tree.rename(planter.box.cache / ("a" * 32))
    planter.plant(planter.temporary)
    planter.check(planter.box.run())
    assert (planter.box.cache / planter.name).is_dir()


def test_without_a_home_what_is_found_is_put_aside(planter: Planter) -> None:
    planted = planter.plant(planter.temporary)
    planter.check(planter.start())
    assert planter.first(planted).read_bytes() != planter.script()
    unpacked = planted.stat().st_ino
    planter.check(planter.start())
    assert planted.stat().st_ino == unpacked, "what is ours is not unpacked again"


def put_script(planter: Planter, tree: Path) -> None:
    planter.first(tree).write_bytes(planter.script())


def put_pipe(planter: Planter, tree: Path) -> None:
    first = planter.first(tree)
    first.unlink()
    os.mkfifo(first)


def put_link_to_script(planter: Planter, tree: Path) -> None:
    first, script = planter.first(tree), tree.parent / "script"
    script.write_bytes(planter.script())
    script.chmod(0o700)
    first.unlink()
    first.symlink_to(script)


def put_second_name(planter: Planter, tree: Path) -> None:
    os.link(planter.first(tree), tree.parent / "second-name")


def put_link_to_folder(planter: Planter, tree: Path) -> None:
    folder = next(path for path in tree.iterdir() if path.is_dir())
    folder.rename(tree.parent / "moved")
    folder.symlink_to(tree.parent / "moved")


def put_further_library(planter: Planter, tree: Path) -> None:
    """The loader prefers what lies in such folders, and the interpreter compiled modules."""
    for name in ("lib/glibc-hwcaps/x86-64-v2", "__pycache__"):
        (tree / name).mkdir(parents=True)
        (tree / name / "libc.so.6").write_bytes(b"")


def put_folder(planter: Planter, tree: Path) -> None:
    (tree / "ext2").mkdir()


def change_a_byte(planter: Planter, tree: Path) -> None:
    file = max((path for path in tree.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    with file.open("r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        last = opened.read(1)
        opened.seek(-1, os.SEEK_END)
        opened.write(bytes([last[0] ^ 1]))


def take_a_file(planter: Planter, tree: Path) -> None:
    max(path for path in tree.rglob("*") if path.is_file()).unlink()


def open_to_others(planter: Planter, tree: Path) -> None:
    planter.first(tree).parent.chmod(0o777)


def put_file_for_tree(planter: Planter, tree: Path) -> None:
    shutil.rmtree(tree)
    tree.touch()


def put_pipe_for_tree(planter: Planter, tree: Path) -> None:
    shutil.rmtree(tree)
    os.mkfifo(tree)


def put_link_for_tree(planter: Planter, tree: Path) -> None:
    shutil.rmtree(tree)
    tree.symlink_to(planter.plant(tree.parent / "other"))


def close_to_itself(planter: Planter, tree: Path) -> None:
    tree.chmod(0o300)


HARMS = [
    *(put_script, put_pipe, put_link_to_script, put_second_name, put_link_to_folder, put_further_library),
    *(put_folder, change_a_byte, take_a_file, open_to_others),
    *(put_file_for_tree, put_pipe_for_tree, put_link_for_tree, close_to_itself),
]


@contextmanager
def held(tree: Path) -> Iterator[int]:
    """Keep a folder in existence, also without a name; yield its number."""
    descriptor = os.open(tree, os.O_PATH)
    try:
        yield os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: str(harm.__name__))
def test_a_tree_that_was_changed_in_place_is_not_run(
    harm: Callable[[Planter, Path], None], planter: Planter
) -> None:
    tree = planter.own_tree()
    # While it is held, its number is no new tree's.
    with held(tree) as identity:
        harm(planter, tree)
        if harm is close_to_itself and os.geteuid() == 0:
            planter.check(planter.start())  # root reads it all the same
            return
        planter.check(planter.start())
        assert tree.is_dir()
        assert tree.stat().st_ino != identity, "unpacked anew"


def test_pipes_and_files_in_the_way_hold_nobody_up(planter: Planter) -> None:
    planter.temporary.mkdir(0o700)
    for name in (".lock", f".use-{planter.name}"):
        os.mkfifo(planter.temporary / name)
    planter.check(planter.start())
    planter.check(planter.start())


def test_rubbish_of_any_depth_holds_nobody_up(planter: Planter) -> None:
    planter.temporary.mkdir(0o700)
    rubbish = planter.temporary / ".new-rubbish"
    rubbish.mkdir()
    deeper = os.open(rubbish, os.O_RDONLY)
    for _ in range(3000):  # deeper than an interpreter recurses, and than a path can say
        os.mkdir("a", dir_fd=deeper)
        above, deeper = deeper, os.open("a", os.O_RDONLY, dir_fd=deeper)
        os.close(above)
    os.close(deeper)
    os.utime(rubbish, (0, 0))
    try:
        planter.check(planter.start())
        os.utime(planter.temporary / planter.name, (0, 0))
        planter.check(planter.start())
    finally:
        subprocess.run(["rm", "-rf", planter.temporary], check=True)


def test_locks_of_strangers_hold_nobody_up(planter: Planter) -> None:
    tree = planter.own_tree()
    with locked(tree, planter.temporary / ".lock", planter.temporary / f".use-{planter.name}"):
        planter.check(planter.start())
        shutil.rmtree(tree)
        planter.check(planter.start())
    assert tree.is_dir()


def test_a_lock_on_the_tree_itself_is_of_no_account(planter: Planter) -> None:
    planter.box.run()
    with locked(planter.box.tree, planter.box.cache):
        done = planter.box.run()
    planter.check(done)
    assert is_version(done)
    assert not planter.temporary.exists()


def test_locks_cannot_be_had_by_who_may_only_read(planter: Planter) -> None:
    planter.box.run()
    modes = {path.name: path.stat().st_mode & 0o777 for path in planter.box.cache.iterdir() if path.is_file()}
    assert modes == {".lock": 0o200, f".use-{planter.name}": 0o200}


def test_a_cache_behind_a_link_of_the_user_is_doubted(planter: Planter, tmp_path: Path) -> None:
    """Nothing can be mounted over a link, so a command that may write beside it can let it lead elsewhere."""
    (planter.box.home / ".cache").symlink_to(tmp_path / "elsewhere")
    planted = planter.plant(tmp_path / "elsewhere" / "execserver")
    planter.check(planter.box.run())
    assert planter.first(planted).read_bytes() != planter.script()
    put_script(planter, planted)
    planter.check(planter.box.run())


def test_a_zipapp_in_a_doubted_place_leaves_no_compiled_modules(zipapp: Box, tmp_path: Path) -> None:
    tree = Planter(zipapp, tmp_path).own_tree()
    assert list(tree.rglob("__pycache__")) == []
