"""Unpacking: once, completely or not at all, into a folder nobody else can write to."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support.one_file import Box, is_version
from tests.support.source import ROOT
from tests.support.waiting import wait_until
from tools.freeze.archive import TRAILER_BYTES, pack
from tools.freeze.head import join

RACERS = 20
DAY_S = 24 * 60 * 60


def snapshot(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return what a write anywhere in a folder would change."""
    return {
        str(path): (found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
        for path in (folder, *folder.rglob("*"))
        if (found := path.lstat())
    }


def age(path: Path, days: float) -> None:
    then = time.time() - days * DAY_S
    os.utime(path, (then, then))


def unfinished(box: Box) -> list[str]:
    return [path.name for path in box.cache.iterdir() if path.name.startswith(".new-")]


def test_the_first_start_unpacks_into_the_users_cache(box: Box) -> None:
    assert is_version(box.run())
    assert box.tree.is_dir()
    assert {path.stat().st_mode & 0o777 for path in (box.cache, box.tree)} == {0o700}
    assert unfinished(box) == []


@pytest.mark.parametrize("mask", ["777", "200", "000"])
def test_no_umask_spoils_the_tree_for_later_starts(mask: str, box: Box) -> None:
    """A tree is believed once it is there: one without its owner's rights would stay as it is."""
    first = box.run(["-c", f'umask {mask}; exec "$0" --version', box.program], Path("/bin/sh"))
    assert is_version(first)
    assert is_version(box.run())
    modes = {path: path.stat().st_mode & 0o777 for path in (box.cache.parent, *box.cache.parent.rglob("*"))}
    locks = {path for path in modes if path.parent == box.cache and path.is_file()}
    # What the program itself compiles has its umask; one that cannot be read is compiled again and replaced.
    compiled = {path for path in modes if path.suffix == ".pyc" and path.parent.name == "__pycache__"}
    assert {modes[path] for path in locks} == {0o200}
    assert {modes[path] for path in modes.keys() - locks - compiled} <= {0o600, 0o700}


def test_a_tree_nobody_may_look_into_is_replaced(light: Box) -> None:
    """As one that was unpacked under a strange umask by an earlier program."""
    assert is_version(light.run())
    identity = light.tree.stat().st_ino
    light.tree.chmod(0)
    light.cache.chmod(0)
    assert is_version(light.run())
    assert light.cache.stat().st_mode & 0o777 == 0o700
    if os.geteuid():  # root reads it all the same
        assert light.tree.stat().st_ino != identity


def test_a_home_that_is_not_there_is_not_made(light: Box, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    light.variables["HOME"] = str(missing / "home")
    assert is_version(light.run())
    assert not missing.exists()
    assert (light.temporary / f"execserver-{os.geteuid()}").is_dir()


def test_where_stdio_is_closed_nothing_is_written_into_locks(box: Box) -> None:
    starter = [sys.executable] if box.program.suffix == ".pyz" else []
    script = 'exec "$@" --no-such-option <&- >&- 2>&-'
    done = box.run(["-c", script, "sh", *starter, box.program], Path("/bin/sh"))
    assert done.returncode == 2, "what is wrong with the words, and nothing else"
    sizes = {path.name[:5]: path.stat().st_size for path in box.cache.iterdir() if path.is_file()}
    assert sizes == {".lock": 0, ".use-": 0}


def test_want_of_descriptors_is_no_verdict_on_a_tree(light: Box) -> None:
    """In a temporary folder a tree that is not ours is put aside."""
    del light.variables["HOME"]
    place = light.temporary / f"execserver-{os.geteuid()}"
    assert is_version(light.run())
    (tree,) = [path for path in place.iterdir() if not path.name.startswith(".")]
    identity = tree.stat().st_ino
    script = 'ulimit -n "$1"; shift; exec "$@" --version'
    starter = [sys.executable, "-I"] if light.program.suffix == ".pyz" else []
    told = set()
    for most in range(3, 14):
        done = light.run(["-c", script, "sh", str(most), *starter, light.program], Path("/bin/sh"))
        told.add(b"allow more open files" in done.stderr)
        assert b"is not used" not in done.stderr
        assert b"/proc is not mounted" not in done.stderr
        assert tree.stat().st_ino == identity, f"{most} descriptors: {done.stderr!r}"
        assert not list(place.glob(".new-*"))
    assert told == {True, False}
    assert is_version(light.run())


def test_a_later_start_writes_nothing(box: Box) -> None:
    box.run()
    box.run()  # a Python on the machine may have compiled the zipapp's modules in the first one
    before = snapshot(box.home)
    assert is_version(box.run())
    assert snapshot(box.home) == before


def test_many_first_starts_at_once_leave_one_tree(one_file: Box) -> None:
    started = [one_file.start() for _ in range(RACERS)]
    outputs = [(*process.communicate(timeout=60), process.returncode) for process in started]
    assert {status for _, _, status in outputs} == {0}
    assert {errors for _, errors, _ in outputs} == {b""}
    assert one_file.tree.is_dir()
    assert unfinished(one_file) == []


def test_first_starts_of_the_zipapp_at_once_leave_one_tree(zipapp: Box) -> None:
    started = [zipapp.start() for _ in range(4)]
    outputs = [(*process.communicate(timeout=60), process.returncode) for process in started]
    assert {(status, errors) for _, errors, status in outputs} == {(0, b"")}
    assert zipapp.tree.is_dir()
    assert unfinished(zipapp) == []


def test_a_start_killed_while_it_unpacks_does_no_harm(box: Box) -> None:
    process = box.start()
    wait_until(lambda: box.cache.is_dir() and unfinished(box), 20)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert is_version(box.run())
    assert box.tree.is_dir()
    assert unfinished(box) == []


def test_trees_unused_for_a_month_are_removed(light: Box) -> None:
    light.run()
    current = light.tree
    old, used, young = (light.cache / (letter * 32) for letter in "abc")
    for path, days in ((old, 31), (used, 31), (young, 29)):
        (path / "folder").mkdir(parents=True)
        (path / "folder" / "file").touch()
        age(path, days)
    stranger = light.cache / "notes"
    stranger.mkdir()
    age(stranger, 400)
    lock = os.open(light.cache / f".use-{used.name}", os.O_WRONLY | os.O_CREAT, 0o200)
    stranger_lock = os.open(old, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        fcntl.flock(stranger_lock, fcntl.LOCK_SH)  # as anybody can who may read it: of no account
        light.run()
        assert old.exists(), "looked for on a day's first start only"
        age(current, 2)
        assert is_version(light.run())
    finally:
        os.close(lock)
        os.close(stranger_lock)
    assert not old.exists()
    assert (used / "folder" / "file").exists()
    assert young.exists()
    assert stranger.exists()
    assert time.time() - current.stat().st_mtime < DAY_S
    assert unfinished(light) == []


def test_a_running_program_holds_its_tree(one_file: Box) -> None:
    with one_file.start([]) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline().startswith(b"ws://")
            lock = os.open(one_file.cache / f".use-{one_file.tree.name}", os.O_WRONLY)
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(lock)
        finally:
            server.terminate()


@pytest.mark.parametrize("variable", ["EXECSERVER_CACHE_DIR", "XDG_CACHE_HOME"])
def test_the_environment_names_the_place(variable: str, light: Box, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen"
    assert is_version(light.run(("--version",), **{variable: str(chosen)}))
    light.cache = chosen if variable.startswith("EXECSERVER") else chosen / "execserver"
    assert light.tree.is_dir()
    assert not (light.home / ".cache").exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_chosen_place_others_can_write_to_is_refused(mode: int, light: Box, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    chosen.chmod(mode)
    done = light.run(EXECSERVER_CACHE_DIR=str(chosen))
    assert (done.returncode, done.stdout) == (1, b"")
    assert f"others can write to {chosen}".encode() in done.stderr
    assert b"What to do: name a folder that is yours alone" in done.stderr
    assert list(chosen.iterdir()) == []


def test_a_place_in_a_folder_others_can_write_to_is_refused(light: Box, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "chosen").mkdir(parents=True)
    (shared / "chosen").chmod(0o700)
    shared.chmod(0o777)
    done = light.run(EXECSERVER_CACHE_DIR=str(shared / "chosen"))
    assert done.returncode == 1
    assert f"others can write to {shared}\n".encode() in done.stderr
    shared.chmod(0o1777)  # as /tmp is: nobody but the owner can replace what lies in it
    assert is_version(light.run(EXECSERVER_CACHE_DIR=str(shared / "chosen")))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_place_of_another_user_gives_way_to_the_next(light: Box) -> None:
    light.cache.mkdir(parents=True)
    os.chown(light.cache, 12345, 12345)
    done = light.run()
    assert (done.returncode, done.stdout[:11]) == (0, b"execserver ")
    assert f"{light.cache} is not used: {light.cache} belongs to another user".encode() in done.stderr
    assert is_version(light.run()), "what was said once is not repeated"
    assert list(light.cache.iterdir()) == []
    light.cache = light.temporary / f"execserver-{os.geteuid()}"
    assert light.tree.is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_tree_of_another_user_is_not_started(light: Box) -> None:
    light.run()
    os.chown(light.tree, 12345, 12345)
    done = light.run(EXECSERVER_CACHE_DIR=str(light.cache))
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"others can write to the tree in it" in done.stderr


def test_a_symlink_to_the_place_is_followed(light: Box, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir(0o700)
    (tmp_path / "link").symlink_to(real)
    assert is_version(light.run(EXECSERVER_CACHE_DIR=str(tmp_path / "link")))
    light.cache = real
    assert light.tree.is_dir()


def test_a_relative_place_is_refused(light: Box) -> None:
    done = light.run(EXECSERVER_CACHE_DIR="cache")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"by its full path, in EXECSERVER_CACHE_DIR" in done.stderr


def test_a_place_the_loader_cannot_be_told_gives_way(one_file: Box, tmp_path: Path) -> None:
    done = one_file.run(XDG_CACHE_HOME=str(tmp_path / "a:b"))
    assert (done.returncode, done.stdout[:11]) == (0, b"execserver ")
    assert b"the loader takes no path with : ; or $ in it" in done.stderr
    assert one_file.tree.is_dir()


def test_a_noexec_place_gives_way_and_is_named(light: Box) -> None:
    light.cache.mkdir(parents=True, mode=0o700)
    done = light.run_in_new_mounts(
        f'mount -t tmpfs -o noexec,mode=700 none "{light.cache}"; "$1" --version; "$1" --version'
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"execserver ") == 2
    assert done.stderr.count(b"is not used: nothing can be executed there (mounted noexec)") == 1
    light.cache = light.temporary / "execserver-0"
    assert light.tree.is_dir()


def test_a_read_only_home_gives_way(light: Box) -> None:
    done = light.run_in_new_mounts(f'mount -t tmpfs -o ro none "{light.home}"; "$1" --version')
    assert done.returncode == 0, done.stderr
    assert b"Read-only file system" in done.stderr
    light.cache = light.temporary / "execserver-0"
    assert light.tree.is_dir()


def test_a_full_disk_gives_way_and_is_left_clean(box: Box) -> None:
    script = f'mount -t tmpfs -o mode=700,size=4m none "{box.home}"; "$1" --version'
    done = box.run_in_new_mounts(f'{script}; find "{box.home}" -name "?new-*"')
    assert done.returncode == 0, done.stderr
    assert b"No space left on device" in done.stderr
    assert b"new-" not in done.stdout


def test_without_any_place_every_reason_is_told(one_file: Box) -> None:
    mounts = "; ".join(
        f'mount -t tmpfs -o ro none "{folder}"'
        for folder in (one_file.home, one_file.temporary, "/dev/shm", "/var/tmp")
    )
    script = f'cp "$1" /mnt/x; {mounts}; mount -t tmpfs -o ro none /tmp; exec /mnt/x --version'
    done = one_file.run_in_new_mounts(f"mount -t tmpfs none /mnt; {script}")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"execserver: there is no folder to unpack into\n")
    # The home and TMPDIR are not there any more.
    assert done.stderr.count(b"Read-only file system") == 3
    assert done.stderr.count(b": there is no /") == 1
    assert b"What to do: " in done.stderr


def test_a_program_that_this_machine_cannot_start_leaves_no_tree(one_file: Box, tmp_path: Path) -> None:
    """Another place would not help, so there is no second tree either."""
    box, launcher = one_file, launcher_of(one_file.program)
    if launcher.startswith(b"#!"):
        pytest.skip("there was no compiler: the script cannot tell why a start fails")
    assert is_version(box.run())
    (loader,) = (path.name for path in (box.tree / "lib").glob("ld-*"))
    shutil.rmtree(box.cache)
    strange = tmp_path / "strange"
    (strange / "lib").mkdir(parents=True)
    (strange / "lib" / loader).write_bytes(b"of another processor")
    (strange / "lib" / loader).chmod(0o700)
    (tmp_path / "launcher").write_bytes(launcher)
    program = tmp_path / "program"
    program.write_bytes(join(ROOT / "launcher", tmp_path / "launcher", loader, pack(strange)))
    program.chmod(0o700)
    done = box.run(["--version"], program)
    assert (done.returncode, done.stdout) == (1, b"")
    said = done.stderr.decode().splitlines()
    assert said[0] == "execserver: this machine does not start the program in this file: Exec format error"
    assert said[2].startswith("  What to do: use the file for this kind of processor")
    assert [path for path in box.cache.iterdir() if path.is_dir()] == []
    assert list(box.temporary.iterdir()) == []


def launcher_of(file: Path) -> bytes:
    """Return what the one file has before the payload."""
    data = file.read_bytes()
    return data[: int(data[-TRAILER_BYTES:].split()[2])]


@pytest.mark.parametrize("harm", ["cut", "changed"])
def test_a_damaged_file_says_so(harm: str, one_file: Box, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copy(one_file.program, damaged)
    size = damaged.stat().st_size
    if harm == "cut":
        os.truncate(damaged, size - 1000)
    else:
        with damaged.open("r+b") as file:
            file.seek(size // 2)
            file.write(bytes(64))
    done = one_file.run(["--version"], damaged, EXECSERVER_CACHE_DIR=str(one_file.cache))
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"damaged or incomplete" in done.stderr
    assert not one_file.cache.exists() or [path.name for path in one_file.cache.iterdir()] == [".lock"]
