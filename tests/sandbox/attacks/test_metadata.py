"""`.git`, `.agents` and `.codex`: writing, replacing, removing, renaming, unmounting, making, leftovers."""

from __future__ import annotations

import pytest

from tests.sandbox.attacks.ground import Ground
from tests.support.ways import Way

REFUSED = {"EROFS", "EBUSY", "EXDEV", "EPERM", "EACCES", "ENOTEMPTY", "EEXIST", "EINVAL", "ENOTDIR", "EISDIR"}

ACTS = """
import shutil
made = ws + "/made"
os.mkdir(made)
open(made + "/config", "w").write("mine")
os.symlink(out, ws + "/link")
os.symlink(".git", ws + "/alias")
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
def renameat2(source, target, flags):
    how = syscall(316, -100, source.encode(), -100, target.encode(), flags)
    if isinstance(how, str):
        raise OSError(getattr(errno, how), how)
    return how
def write(path, flags=os.O_WRONLY):
    opened = os.open(path, flags)
    return os.write(opened, b"attacked")
def by_descriptor(path):
    opened = os.open(path, os.O_PATH)
    return write(f"/proc/self/fd/{opened}")
acts = {
    "write": (write, git + "/config"),
    "append": (write, git + "/config", os.O_WRONLY | os.O_APPEND),
    "truncate": (os.truncate, git + "/config", 0),
    "open truncating": (os.open, git + "/config", os.O_RDONLY | os.O_TRUNC),
    "create": (write, git + "/hook", os.O_WRONLY | os.O_CREAT),
    "tmpfile": (os.open, git, os.O_TMPFILE | os.O_WRONLY),
    "mkdir": (os.mkdir, git + "/hooks"),
    "symlink": (os.symlink, out, git + "/link"),
    "link in": (os.link, ws + "/f", git + "/f"),
    "link out": (os.link, git + "/config", ws + "/config"),
    "unlink": (os.unlink, git + "/config"),
    "rmdir": (os.rmdir, git),
    "rename away": (os.rename, git, ws + "/moved"),
    "rename over": (os.rename, made, git),
    "exchange": (renameat2, made, git, RENAME_EXCHANGE),
    "exchange file": (renameat2, ws + "/f", git + "/config", RENAME_EXCHANGE),
    "rename inside": (os.rename, git + "/config", git + "/other"),
    "rename the root": (os.rename, ws, ws + "-moved"),
    "chmod": (os.chmod, git + "/config", 0o777),
    "chown": (os.chown, git + "/config", os.getuid(), os.getgid()),
    "utime": (os.utime, git + "/config", (1, 1)),
    "xattr": (os.setxattr, git + "/config", "user.attack", b"1"),
    "by descriptor": (by_descriptor, git + "/config"),
    "by proc root": (write, f"/proc/self/root{git}/config"),
    "by proc cwd": (write, "/proc/self/cwd/.git/config"),
    "by alias": (write, ws + "/alias/config"),
    "by dots": (write, ws + "/sub/../.git/config"),
    "by doubled slashes": (write, f"/{ws}//.git/./config"),
    "rmtree": (shutil.rmtree, git),
}
result = outcomes(acts)
"""


def test_existing_metadata_stays(way: Way, ground: Ground) -> None:
    found = ground.python(ACTS)
    assert {name: how for name, how in found.items() if how not in REFUSED} == {}
    ground.check_unharmed()


MISSING = """
import shutil
os.mkdir(ws + "/made")
open(ws + "/made/x", "w").write("mine")
def renameat2(source, target, flags):
    how = syscall(316, -100, source.encode(), -100, target.encode(), flags)
    if isinstance(how, str):
        raise OSError(getattr(errno, how), how)
    return how
def umount(path):
    how = syscall(166, path.encode(), 2)
    if isinstance(how, str):
        raise OSError(getattr(errno, how), how)
    return how
acts = {}
for name in (".agents", ".codex"):
    path = f"{ws}/{name}"
    acts |= {
        f"mkdir {name}": (os.mkdir, path),
        f"file {name}": (os.open, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
        f"child {name}": (os.mkdir, path + "/x"),
        f"child file {name}": (os.open, path + "/x", os.O_WRONLY | os.O_CREAT),
        f"symlink {name}": (os.symlink, "made", path),
        f"rename to {name}": (os.rename, ws + "/made", path),
        f"exchange {name}": (renameat2, ws + "/made", path, 2),
        f"remove {name}": (os.rmdir, path),
        f"rename {name}": (os.rename, path, ws + "/moved"),
        f"fifo {name}": (os.mkfifo, path),
        f"link {name}": (os.link, ws + "/f", path),
        f"umount {name}": (umount, path),
        f"by dots {name}": (os.mkdir, f"{ws}/sub/../{name}/y"),
        f"by cwd {name}": (os.mkdir, f"/proc/self/cwd/{name}/y"),
    }
result = outcomes(acts)
"""


def test_missing_metadata_cannot_be_made(way: Way, ground: Ground) -> None:
    found = ground.python(MISSING)
    assert {name: how for name, how in found.items() if how not in REFUSED} == {}
    ground.check_unharmed()


@pytest.mark.parametrize("end", ["exit 3", "kill -9 $$", "kill -9 -1", "sleep 300 & exit 0", "kill -SEGV $$"])
def test_no_stand_in_is_left_however_a_command_ends(way: Way, ground: Ground, end: str) -> None:
    ground.run(f"mkdir .codex .agents; touch .codex/x; {end}")
    ground.check_unharmed()


def test_a_stand_in_is_only_an_empty_folder_nobody_can_fill(way: Way, ground: Ground) -> None:
    """While a command runs its stand-ins are there on the host: what bounds them is what is tested."""
    script = "for n in .agents .codex; do test -d $n && ls -A $n | wc -l; stat -c %F $n; done"
    assert ground.run(script).out.split("\n")[:-1] == ["0", "directory"] * 2
    ground.check_unharmed()


def test_names_deeper_down_are_ordinary(way: Way, ground: Ground) -> None:
    assert ground.run("mkdir sub/.git sub/.codex && echo x > sub/.git/config").code == 0
    assert (ground.ws / "sub" / ".git" / "config").read_text() == "x\n"
