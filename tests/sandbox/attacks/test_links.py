"""Links of every kind, `..`, and links that are swapped while something happens."""

from __future__ import annotations

from tests.conftest import LONG
from tests.sandbox.attacks.ground import KEPT, Ground
from tests.support.ways import Way

ROUNDS = 20000 if LONG else 400
REFUSED = {"EROFS", "EXDEV", "EACCES", "EPERM", "ENOENT", "ELOOP", "EEXIST"}

LINKS = """
import shutil
os.symlink(out, ws + "/folder")
os.symlink(out + "/f", ws + "/file")
os.symlink(out + "/new", ws + "/dangling")
os.symlink("../out", ws + "/relative")
os.symlink("/proc/self/root" + out, ws + "/magic")
os.symlink("folder", ws + "/chain")
os.symlink("loop", ws + "/loop")
def write(path, flags=os.O_WRONLY | os.O_CREAT):
    return os.write(os.open(path, flags, 0o666), b"attacked")
places = ["folder/f", "folder/new", "file", "dangling", "relative/f", "magic/f", "chain/f", "loop",
          "../out/f", "sub/../../out/f", "./.././out/new"]
acts = {f"write {p}": (write, f"{ws}/{p}") for p in places}
acts |= {f"truncate {p}": (os.truncate, f"{ws}/{p}", 0) for p in places}
acts |= {f"chmod {p}": (os.chmod, f"{ws}/{p}", 0o777) for p in ("folder", "file", "relative/f", "chain/f")}
acts |= {
    "mkdir": (os.mkdir, ws + "/folder/made"),
    "symlink": (os.symlink, "x", ws + "/folder/made"),
    "rename into": (os.rename, ws + "/f", ws + "/folder/f"),
    "rename out of": (os.rename, ws + "/folder/f", ws + "/stolen"),
    "unlink": (os.unlink, ws + "/folder/f"),
    "copy": (shutil.copyfile, ws + "/f", ws + "/folder/f"),
    "hard link to outside": (os.link, out + "/f", ws + "/hard"),
    "hard link from outside": (os.link, ws + "/f", out + "/hard"),
    "hard link through": (os.link, ws + "/folder/f", ws + "/hard"),
    "utime": (os.utime, ws + "/file", (1, 1)),
    "xattr": (os.setxattr, ws + "/file", "user.attack", b"1"),
    "descriptor": (lambda: write(f"/proc/self/fd/{os.open(ws + '/folder', os.O_PATH)}/f"),),
    "reopened": (lambda: write(f"/proc/self/fd/{os.open(ws + '/file', os.O_RDONLY)}", os.O_WRONLY),),
}
result = outcomes(acts)
"""


def test_no_link_leads_to_a_write_outside(any_way: Way, ground: Ground) -> None:
    found = ground.python(LINKS)
    assert {name: how for name, how in found.items() if how not in REFUSED} == {}
    ground.check_unharmed()


RACE = """
import threading, time
os.mkdir(ws + "/place")
open(ws + "/place/f", "w").close()
os.symlink(out, ws + "/lure")
stop = []
def swap():
    while not stop:
        syscall(316, -100, (ws + "/place").encode(), -100, (ws + "/lure").encode(), 2)
thread = threading.Thread(target=swap)
thread.start()
written = refused = 0
for _ in range({rounds}):
    try:
        opened = os.open(ws + "/place/f", os.O_WRONLY | os.O_CREAT)
        os.write(opened, b"attacked")
        os.close(opened)
        written += 1
    except OSError:
        refused += 1
stop.append(1)
thread.join()
result = [written, refused]
"""


def test_a_link_swapped_in_a_race_leads_nowhere(any_way: Way, ground: Ground) -> None:
    written, refused = ground.python(RACE.replace("{rounds}", str(ROUNDS)))
    assert written + refused == ROUNDS
    ground.check_unharmed()


def test_a_link_that_was_there_before_is_read_like_its_target(way: Way, ground: Ground) -> None:
    """The policy grants reading everything but what it denies: a link changes nothing about that."""
    (ground.ws / "to-out").symlink_to(ground.out / "f")
    (ground.ws / "to-denied").symlink_to(ground.denied / "f")
    done = ground.run("cat to-out; cat to-denied")
    assert done.out == KEPT
    assert done.code != 0
