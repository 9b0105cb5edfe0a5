"""FIFOs of others: no read-only mount stops a write to one, and supervisors obey what comes out of theirs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.sandbox.kernel import landlock
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import (
    FILTER_OPEN,
    FILTER_RESTRICTED,
    LINK,
    NETWORK_HOST,
    NETWORK_NONE,
    READ,
    ROOT_EMPTY,
    ROOT_READ_ONLY,
    WRITE,
    Mount,
    SandboxPlan,
)
from tests.sandbox.attacks.ground import Ground
from tests.support.roots import ENV, give, mount
from tests.support.ways import Way

# Old kernels are played by taking the calls away.
ABI = landlock.abi(Kernel())

WRITING = """
def write(path, flags=os.O_WRONLY):
    return tried(lambda: os.write(os.open(path, flags | os.O_NONBLOCK), b"obey"))
"""
ATTACKS = (
    WRITING
    + """
fifo = out + "/control"
os.symlink(fifo, ws + "/link")
seen = os.open(fifo, os.O_PATH)
read = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
def attacks():
    return {
        "write": write(fifo),
        "read and write": write(fifo, os.O_RDWR),
        "append, cut": write(fifo, os.O_WRONLY | os.O_APPEND | os.O_TRUNC),
        "create": write(fifo, os.O_RDWR | os.O_CREAT),
        "link": write(ws + "/link"),
        "root of a process": write("/proc/self/root" + fifo),
        "folder of a process": (os.chdir(out), write("/proc/self/cwd/control"), os.chdir(ws))[1],
        "path only": write(f"/proc/self/fd/{seen}"),
        "opened for reading": write(f"/proc/self/fd/{read}"),
        "beside": write("../out/control"),
        "socket-like": write(out + "/./control", os.O_RDWR | os.O_CLOEXEC),
    }
"""
)
IN_A_NAMESPACE = """
uid = os.getuid()
if syscall(272, 0x10000000) == 0:
    tried(lambda: open("/proc/self/setgroups", "w").write("deny"))
    tried(lambda: open("/proc/self/uid_map", "w").write(f"0 {uid} 1"))
"""


def closes(way: Way) -> bool:
    """Tell whether the way puts commands under Landlock's rights of files."""
    return ABI >= landlock.LEAST_ABI_IN_ROOT and "landlock_restrict_self" not in way.without


@pytest.fixture
def reader(request: pytest.FixtureRequest, ground: Ground) -> Iterator[int]:
    """A FIFO outside the writable roots that every user may write to, and who listens to it."""
    way = ground.way
    if not closes(way):
        pytest.skip("FIFOs are closed by Landlock, which this kernel lacks or is taken from it")
    os.mkfifo(ground.out / "control")
    (ground.out / "control").chmod(0o666)
    listening = os.open(ground.out / "control", os.O_RDONLY | os.O_NONBLOCK)
    yield listening
    os.close(listening)


def heard(reader: int) -> bytes:
    try:
        return os.read(reader, 100)
    except BlockingIOError:
        return b""  # somebody has opened it for writing and is still there


@pytest.mark.parametrize("network", ["off", "on"])
def test_a_fifo_outside_is_not_written_to(any_way: object, ground: Ground, reader: int, network: str) -> None:
    kind = (NETWORK_HOST, FILTER_OPEN) if network == "on" else (NETWORK_NONE, FILTER_RESTRICTED)
    found = ground.python(ATTACKS + "result = attacks()", ground.plan(*kind))
    assert set(found.values()) == {"EACCES"}, found
    assert heard(reader) == b""


def test_nor_from_a_user_namespace_inside(any_way: object, ground: Ground, reader: int) -> None:
    found = ground.python(ATTACKS + IN_A_NAMESPACE + "result = attacks()")
    assert set(found.values()) == {"EACCES"}, found
    assert heard(reader) == b""


def test_nor_by_who_stands_first_in_the_view(way: Way, ground: Ground, reader: int) -> None:
    # It is under no such rules: whoever could trace it, or write to its memory, could have it open the FIFO.
    code = """
def opened(name):
    return tried(lambda: os.close(os.open("/proc/1/" + name, os.O_RDWR)))
def traced(request):
    ctypes.set_errno(0)
    return libc.ptrace(request, 1, 0, 0), errno.errorcode[ctypes.get_errno()]
ATTACH, SEIZE = 16, 0x4206
result = opened("mem"), opened("root" + out + "/control"), traced(ATTACH), traced(SEIZE)
"""
    *files, attached, seized = ground.python(code, ground.plan(NETWORK_HOST, FILTER_OPEN))
    assert set(files) <= {"EACCES", "EPERM"}, files
    assert attached == seized == [-1, "EPERM"]
    assert heard(reader) == b""


def test_nor_under_a_policy_that_grants_no_writing(any_way: object, ground: Ground, reader: int) -> None:
    code = WRITING + "result = write(out + '/control'), write(out + '/control', os.O_RDWR)"
    assert ground.python(code, SandboxPlan(ROOT_READ_ONLY)) == ["EACCES", "EACCES"]
    assert heard(reader) == b""


def test_nor_in_a_view_of_named_folders(way: Way, ground: Ground, reader: int) -> None:
    usual = [mount(READ, Path(p)) for p in ("/usr", "/bin", "/lib", "/lib64", "/opt") if Path(p).is_dir()]
    named = tuple(one for one in usual if not Path(os.fsdecode(one.path)).is_symlink())
    links = [Path(p) for p in ("/bin", "/lib", "/lib64") if Path(p).is_symlink()]
    made = tuple(Mount(LINK, os.fsencode(p), os.readlink(os.fsencode(p))) for p in links)
    view = SandboxPlan(ROOT_EMPTY, (*named, *made, mount(WRITE, ground.ws), mount(READ, ground.out)))
    script = "echo obey 1<>$OUT/control; echo $?; mkfifo p; (cat p & echo obey > p; wait)"
    done = ground.run(script.replace("$OUT", str(ground.out)), view)
    assert (done.out.split()[0] != "0", done.out.split()[1:]) == (True, ["obey"]), done
    assert heard(reader) == b""


def test_files_outside_are_refused_as_files_of_a_read_only_file_system(way: Way, ground: Ground) -> None:
    code = """
result = [tried(lambda: open(out + "/f", mode)) for mode in ("w", "a", "r+")]
result += [tried(lambda: open(out + "/new", "w")), tried(os.rename, out + "/f", out + "/g")]
result += [tried(os.mkfifo, out + "/p"), tried(lambda: open(git + "/config", "w"))]
"""
    assert set(ground.python(code)) == {"EROFS"}
    ground.check_unharmed()


HONEST = {
    "fifo in a root": "mkfifo p && { echo fifo > p & cat p; }",
    "fifo in a folder": "mkfifo sub/p && { echo fifo > sub/p & cat sub/p; }",
    "shared memory": "mkfifo /dev/shm/p && { echo fifo > /dev/shm/p & cat /dev/shm/p; }",
    "standard output": "{ echo fifo > /dev/stdout; } | cat",
    "standard error": "{ echo fifo > /dev/stderr; } 2>&1 | cat",
    "process substitution": "bash -c 'echo fifo > >(cat); cat < <(true); wait $!'",
    "devices": "echo x > /dev/null && ! echo x 2>/dev/null > /dev/full && echo fifo",
    "renames": "echo fifo > a && mv a sub/b && ln sub/b c && mv c sub/d && cat sub/d",
    "settings of itself": "echo 500 > /proc/self/oom_score_adj && echo fifo",
    "anonymous file": (
        "python3 -c \"import os; d = os.memfd_create('x'); open(f'/proc/self/fd/{d}', 'w').write('fifo');"
        " print(open(f'/proc/self/fd/{d}').read())\""
    ),
    "file without a name": (
        "python3 -c \"import os; d = os.open('.', os.O_TMPFILE | os.O_RDWR); os.write(d, b'fifo');"
        " os.link(f'/proc/self/fd/{d}', 'named', src_dir_fd=d, follow_symlinks=True);"
        " print(open('named').read())\""
    ),
    "job server": ("printf 'all: a b\\na b:\\n\\t@true\\n' > Makefile && make -s -j2 all && echo fifo"),
}


def test_a_fifo_made_in_a_folder_for_temporary_files_works(way: Way, ground: Ground) -> None:
    kept = os.fsencode(ground.folder / "tmp")
    os.mkdir(kept)
    give(ground.folder / "tmp", way.user)
    view = SandboxPlan(ROOT_READ_ONLY, (mount(WRITE, ground.ws), mount(WRITE, ground.folder / "tmp")))
    script = 'mkfifo "$TMPDIR/p" && { echo fifo > "$TMPDIR/p" & cat "$TMPDIR/p"; } && mv "$TMPDIR/p" .'
    done = ground.run(script, view, env=[*ENV, b"TMPDIR=" + kept])
    assert (done.out, done.code) == ("fifo\n", 0), done


@pytest.mark.parametrize("case", HONEST)
def test_what_a_command_has_itself_works(way: Way, ground: Ground, case: str) -> None:
    done = ground.run(HONEST[case])
    assert (done.out, done.code) == ("fifo\n", 0), done


def test_chroot_in_a_user_namespace_works_as_browsers_want_it(way: Way, ground: Ground) -> None:
    ground.need_user_namespaces()
    code = IN_A_NAMESPACE + "result = tried(os.chroot, ws)"
    assert ground.python(code) == "None"


def test_sandboxes_inside_are_a_choice_of_the_server(way: Way, ground: Ground) -> None:
    ground.need_user_namespaces()
    if not closes(way):
        pytest.skip("mounts are refused by Landlock, which this kernel lacks or is taken from it")
    script = "unshare -rm sh -c 'mount -t tmpfs t sub && echo nested'"
    assert ground.run(script, ground.plan(nesting=True)).out == "nested\n"
    refused = ground.run(script)
    assert (refused.out, refused.code != 0) == ("", True)
    assert ground.run("unshare -r sh -c 'echo nested'").out == "nested\n"


def test_the_same_choice_opens_fifos(way: Way, ground: Ground, reader: int) -> None:
    code = WRITING + "result = write(out + '/control', os.O_RDWR)"
    assert ground.python(code, ground.plan(nesting=True)) == "4"
    assert heard(reader) == b"obey"


def test_landlock_alone_takes_no_word_of_nesting(landlock_way: Way, ground: Ground, reader: int) -> None:
    view = SandboxPlan(ROOT_READ_ONLY, nesting=True)
    assert ground.python(WRITING + "result = write(out + '/control', os.O_RDWR)", view) == "EACCES"
    assert heard(reader) == b""
