"""Denied files and folders: direct, by alias, by rename, by link, by descriptor, by unmounting."""

from __future__ import annotations

from tests.sandbox.attacks.ground import SECRET, Ground
from tests.support.ways import Way

WAYS_IN = """
import subprocess, shutil
def read(path, flags=os.O_RDONLY):
    return os.read(os.open(path, flags), 100).decode()
def by_descriptor(path):
    opened = os.open(path, os.O_PATH)
    return read(f"/proc/self/fd/{opened}")
def linked(path):
    os.link(path, ws + "/linked")
    return read(ws + "/linked")
def renamed(path):
    os.rename(path, ws + "/renamed")
    return read(ws + "/renamed")
def copied(path):
    shutil.copyfile(path, ws + "/copied")
    return read(ws + "/copied")
def pointed(path):
    os.symlink(path, ws + "/pointed" + str(len(os.listdir(ws))))
    return read(ws + "/pointed" + str(len(os.listdir(ws)) - 1))
def opened(path):
    os.chmod(path, 0o777)
    return read(path)
def through_parent():
    os.rename(denied, ws + "/opened")
    return read(ws + "/opened/f")
def by_shell(text):
    done = subprocess.run(["/bin/sh", "-c", text], capture_output=True, text=True)
    return done.stdout
def listed(path):
    return os.listdir(path)
acts = {"list": (listed, denied), "list by fd": (by_descriptor, denied), "rmdir": (os.rmdir, denied),
        "parent": (through_parent,), "replace": (os.rename, ws + "/f", key), "unlink": (os.unlink, key),
        "truncate": (os.truncate, key, 0), "write": (lambda: os.write(os.open(key, os.O_WRONLY), b"x"),)}
for name, path in (("file", denied + "/f"), ("key", key)):
    for act in (read, by_descriptor, linked, renamed, copied, pointed, opened):
        acts[f"{act.__name__} {name}"] = (act, path)
    relative = os.path.relpath(path, ws)
    acts |= {
        f"dots {name}": (read, f"{ws}/sub/../{relative}"),
        f"root {name}": (read, f"/proc/self/root{path}"),
        f"cwd {name}": (read, f"/proc/self/cwd/{relative}"),
        f"task {name}": (read, f"/proc/thread-self/root{path}"),
        f"init {name}": (read, f"/proc/1/root{path}"),
        f"init cwd {name}": (read, f"/proc/1/cwd{path}"),
        f"direct {name}": (read, path, os.O_RDONLY | os.O_DIRECT),
        f"noatime {name}": (read, path, os.O_RDONLY | os.O_NOATIME),
        f"shell {name}": (by_shell, f"cat {path} {ws}/den*/f {ws}/k*; find {ws} -exec cat {{}} +"),
        f"grep {name}": (by_shell, f"grep -rs secret {ws} {ws}/denied; tar c {ws} | strings"),
    }
result = outcomes(acts)
"""


def test_what_is_denied_is_never_read(way: Way, ground: Ground) -> None:
    found = ground.python(WAYS_IN)
    assert {name: how for name, how in found.items() if SECRET in how} == {}
    tools = ("shell", "grep")  # these show what else there is
    assert {
        name: how for name, how in found.items() if how[:1] != "E" and name[:5].strip() not in tools
    } == {}
    ground.check_unharmed()


def test_what_is_denied_is_not_read_by_another_name_from_before(way: Way, ground: Ground) -> None:
    """A symbolic link to it, made before, leads to the mask; the mask is of the file, not of the name."""
    (ground.ws / "before").symlink_to("key")
    (ground.ws / "far").symlink_to(ground.denied / "f")
    done = ground.run("cat before far sub/../before")
    assert SECRET not in done.out
    assert done.code != 0


def test_a_program_that_is_denied_does_not_run(way: Way, ground: Ground) -> None:
    ground.key.write_text("#!/bin/sh\necho ran\n")
    ground.key.chmod(0o755)
    done = ground.run("./key; sh key; . ./key; denied/f")
    assert "ran" not in done.out


def test_folders_that_hold_something_denied_are_not_moved(way: Way, ground: Ground) -> None:
    code = """
result = [tried(os.rename, ws, ws + "-moved"), tried(os.rename, denied, ws + "/sub/d")]
result += [tried(os.rename, git, ws + "/sub/g")]
"""
    assert set(ground.python(code)) <= {"EBUSY", "EROFS", "EXDEV", "EACCES"}
    ground.check_unharmed()
