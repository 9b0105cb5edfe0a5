"""The ways a sandbox can come about: who asks, what enforces it, and what the kernel refuses meanwhile.

Payloads go the way commands of the server go (`Sandboxes`, which is the zygote's), in a forked child that
first takes on the way's user and limits.  They run inside the view of a plan or not at all.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from execserver.sandbox.backends import bwrap, landlock_only
from execserver.sandbox.backends.probe_bwrap import try_bwrap
from execserver.sandbox.kernel import landlock, namespaces, seccomp
from execserver.sandbox.kernel.seccomp_table import ARCHITECTURES
from execserver.sandbox.kernel.syscalls import Kernel, number_of
from execserver.sandbox.plan import SandboxPlan
from execserver.sandbox.plan_record import encode_plan
from execserver.zygote.confine.sandboxes import Sandboxes
from execserver.zygote.confinement import BUBBLEWRAP, LANDLOCK, NATIVE, Confinement
from execserver.zygote.libc import Libc
from execserver.zygote.records import (
    SpawnRequest,
)
from execserver.zygote.spawn import SpawnFailure
from tests.conftest import LONG
from tests.support.opened import open_program, open_python, open_search_path
from tests.support.roots import ENV, FREE_UID, OLD_KERNEL, REFUSED, USERS, Outcome, become, in_child
from tests.support.sandbox_init import COMPILED, PYTHON, program_of
from tests.support.server_process import Flavour
from tests.support.source import ROOT
from tests.support.started import start

_EPERM = 1
# Only a folder that belongs to root all the way up will do, and those of tests lie in /tmp.
_SETUID_PLACE = Path(f"/opt/execserver-tests-{os.getpid()}")


class Way(NamedTuple):
    """One way: its name, who asks, back end, calls the kernel lacks, how user namespaces fail, whose init."""

    name: str
    user: int
    back_end: str
    without: tuple[str, ...] = ()
    refusal: str = ""  # "", "filter" (EPERM by seccomp) or "limit" (ENOSPC by sysctl)
    maker: str = PYTHON

    def __str__(self) -> str:
        return self.name


# The ordinary user is who runs the tests, unless that is root.
_ORDINARY = USERS[-1]
WAYS = (
    Way("native-root", 0, NATIVE),
    Way("native-user", _ORDINARY, NATIVE),
    Way("compiled-root", 0, NATIVE, (), "", COMPILED),
    Way("compiled-user", _ORDINARY, NATIVE, (), "", COMPILED),
    Way("native-old-root", 0, NATIVE, OLD_KERNEL),
    Way("native-old-user", _ORDINARY, NATIVE, OLD_KERNEL),
    Way("root-without-userns-filter", 0, NATIVE, (), "filter"),
    Way("root-without-userns-limit", 0, NATIVE, (), "limit"),
    Way("bubblewrap-root", 0, BUBBLEWRAP),
    Way("bubblewrap-user", _ORDINARY, BUBBLEWRAP),
    Way("bubblewrap-setuid-user-filter", _ORDINARY, BUBBLEWRAP, (), "filter"),
    Way("landlock-root", 0, LANDLOCK, (), "filter"),
    Way("landlock-user", _ORDINARY, LANDLOCK, (), "filter"),
)
# Left to long runs: what differs from another way by the user or the kind of refusal only.
_LONG = (
    *("compiled-root", "native-old-root", "root-without-userns-filter"),
    *("bubblewrap-root", "bubblewrap-user", "landlock-root"),
)
PLAYED = tuple(way for way in WAYS if LONG or way.name not in _LONG)
VIEWS = tuple(way for way in PLAYED if way.back_end != LANDLOCK)


def require(way: Way) -> None:
    """Skip the test when this machine does not have what the way needs."""
    if os.geteuid() != 0 and (way.user != os.geteuid() or way.refusal):
        pytest.skip(f"only root can become user {way.user} and refuse namespaces to others")
    program_of(way.maker)  # here and not in a fork, which could not keep it
    if way.back_end == BUBBLEWRAP:
        bubblewrap_for(way)
    if way.back_end == LANDLOCK and landlock.abi(Kernel()) < landlock_only.LEAST_ABI:
        pytest.skip("this kernel has no Landlock of ABI 3 or newer")


def bubblewrap_for(way: Way) -> bwrap.Bwrap:
    """Return the bubblewrap a way uses, or skip naming the missing program."""
    folder = _setuid_copy() if way.refusal else "/usr/bin:/bin:/usr/local/bin"
    if folder is None:
        pytest.skip("there is no program bwrap (bubblewrap) on this machine")
    found, check = try_bwrap(folder.encode(), b"/")
    if found is None:
        pytest.skip(f"bubblewrap cannot be used here: {check.blocker}")
    return found


@functools.cache
def _setuid_copy() -> str | None:
    """Return a folder with a set-user-id copy of bubblewrap, removed at the end of the run; None without."""
    program = shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin")
    if program is None:
        return None
    _SETUID_PLACE.mkdir(mode=0o755, exist_ok=True)
    copy = _SETUID_PLACE / "bwrap"
    shutil.copyfile(program, copy)
    copy.chmod(0o4755)
    atexit.register(_remove_setuid_copy, os.getpid())
    return str(_SETUID_PLACE)


def _remove_setuid_copy(maker: int) -> None:
    if os.getpid() == maker:
        shutil.rmtree(_SETUID_PLACE, ignore_errors=True)


def run(
    way: Way,
    plan: SandboxPlan,
    argv: Sequence[str] | str,
    *,
    cwd: Path | str = "/",
    env: Sequence[bytes] = ENV,
    arg0: bytes | None = None,
) -> Outcome:
    """Run a shell script, or a program with arguments, in a view of that way; stdin is the null device."""
    words = ["/bin/sh", "-c", argv] if isinstance(argv, str) else list(argv)
    detail = bwrap.encode(bubblewrap_for(way)) if way.back_end == BUBBLEWRAP else b""
    request = SpawnRequest(
        1,
        [os.fsencode(word) for word in words],
        env,
        os.fsencode(cwd),
        arg0,
        confinement=Confinement(way.back_end, encode_plan(plan), detail),
    )
    return in_child(lambda: start_request(way, request, [1, 2]))


def run_python(way: Way, plan: SandboxPlan, code: str, *, cwd: Path | str = "/") -> Any:
    """Run Python code in a view of that way; return what it assigned to `result`, over JSON."""
    text = f"{PRELUDE}\n{code}\nprint(json.dumps(result))"
    done = run(way, plan, [python_for(way.user), "-I", "-S", "-c", text], cwd=cwd)
    assert done.status == 0, done
    return json.loads(done.out)


PRELUDE = """\
import ctypes, errno, json, os, socket, stat, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def syscall(number, *arguments):
    "0 and up, or the name of the error."
    done = libc.syscall(ctypes.c_long(number), *[
        ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return done if done >= 0 else errno.errorcode[ctypes.get_errno()]
def tried(act, *arguments):
    "What comes of an act: its result as text, or the name of the error."
    try:
        return str(act(*arguments))
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
def outcomes(acts):
    "The result or error of each act, by name."
    return {name: tried(*act) for name, act in acts.items()}
"""


@functools.cache
def python_for(user: int) -> str:
    """Return an interpreter a user can start, or skip."""
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        if not os.path.exists(candidate):
            continue

        def start(program: str = candidate) -> int:
            return subprocess.run([program, "-I", "-S", "-c", "import ctypes"], check=False).returncode

        try:
            done = in_child(start, user)
        except AssertionError:  # it could not be started at all
            continue
        if done.status == 0:
            return candidate
    pytest.skip(f"there is no python that user {user} can start")


def start_request(way: Way, request: SpawnRequest, descriptors: Sequence[int]) -> int:
    """Carry out a request in a child of a way, its descriptors being the child's; return the wait status."""
    refuse_user_namespaces(way.refusal)
    become(way.user)
    kernel = Kernel(way.without) if way.without else Kernel()
    confinement = Sandboxes(Libc(), kernel, program=program_of(way.maker))
    try:
        pid = start(confinement, request, descriptors)
        wait_for_start(confinement, pid)
    except SpawnFailure as failure:
        os.write(2, b" ".join(failure.details) or os.strerror(failure.errno).encode())
        return REFUSED << 8
    _, status = os.waitpid(pid, 0)
    status = confinement.take_end(pid, status)
    confinement.close()
    return status


def wait_for_start(confinement: Sandboxes, pid: int) -> None:
    """Wait until a sandbox has told how its start went; raise SpawnFailure when it failed."""
    report = confinement.report_of(pid)
    if report is None:
        return
    poll = select.poll()
    poll.register(report, select.POLLIN)
    poll.poll(30_000)
    failure = confinement.hear(pid)
    if failure is not None:
        confinement.take_end(*os.waitpid(pid, 0))
        raise failure


def refuse_user_namespaces(how: str) -> None:
    """Have the kernel refuse new user namespaces to this process and all it starts; needs root."""
    if how == "filter":
        _install_refusal()
    elif how == "limit":
        _enter_limit()


def _install_refusal() -> None:
    kernel = Kernel()
    refuse = (seccomp.RETURN, 0, 0, 0x00050000 | _EPERM)
    code = [
        (seccomp.LOAD, 0, 0, 4),
        (seccomp.JUMP_EQUAL, 1, 0, ARCHITECTURES[kernel.machine]),
        (seccomp.RETURN, 0, 0, seccomp.ALLOW),
        (seccomp.LOAD, 0, 0, 0),
        # Its flags lie behind a pointer: as a kernel without it, like Docker's filter does.
        (seccomp.JUMP_EQUAL, 0, 1, number_of(kernel.machine, "clone3")),
        (seccomp.RETURN, 0, 0, 0x00050000 | 38),
        (seccomp.JUMP_EQUAL, 1, 0, number_of(kernel.machine, "unshare")),
        (seccomp.JUMP_EQUAL, 0, 4, number_of(kernel.machine, "clone")),
        (seccomp.LOAD, 0, 0, 16),
        (seccomp.AND, 0, 0, namespaces.NEW_USER),
        (seccomp.JUMP_EQUAL, 1, 0, 0),
        refuse,
        (seccomp.RETURN, 0, 0, seccomp.ALLOW),
    ]
    # By root's right and not by no_new_privs, so that set-user-id programs still work.
    seccomp.install_program(kernel, b"".join(struct.pack("<HBBI", *one) for one in code))


def _enter_limit() -> None:
    """Go into a user namespace, all users mapped, in which no further one may be made."""
    kernel = Kernel()
    ready, go = os.pipe(), os.pipe()
    parent = os.getpid()
    helper = os.fork()
    if helper == 0:
        os.read(ready[0], 1)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{parent}/{name}").write_text("0 0 4294967295")
        os.write(go[1], b"1")
        os._exit(0)
    kernel.call("unshare", namespaces.NEW_USER)
    os.write(ready[1], b"1")
    os.read(go[0], 1)
    os.waitpid(helper, 0)
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def listing(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return every file below a folder with its mode and content: what an attack must not have changed."""
    found: dict[str, tuple[int, bytes]] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        readable = stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK)
        content = path.read_bytes() if readable else b""
        found[str(path.relative_to(folder))] = (status.st_mode, content)
    return found


def server_flavour(flavour: Flavour, kind: str) -> Flavour:
    """Return a server's flavour with the user, the back end and the refusals of a kind.

    `root`, `user`; `root-without-userns`, `bubblewrap-user`, `landlock-user` and `refused-user`, to whom
    user namespaces are refused by a filter; `old-kernel-user`, whose kernel lacks newer calls.
    """
    if os.geteuid() != 0:
        if kind == "user":
            return flavour
        pytest.skip("only root can become another user and refuse namespaces to it")
    refusal = "" if kind in ("root", "user") else "calls" if kind.startswith("old-kernel") else "filter"
    user = 0 if kind.startswith("root") else FREE_UID
    program, *rest = flavour.argv
    env = dict(flavour.env)
    if program == sys.executable:
        program, env["PYTHONPATH"] = open_python(), open_search_path()
    else:
        program = open_program(program)
    if kind.startswith("bubblewrap"):
        folder = _setuid_copy()
        if folder is None:
            pytest.skip("there is no program bwrap (bubblewrap) on this machine")
        env["PATH"] = f"{folder}:/usr/bin:/bin"
    elif refusal == "filter":
        env["PATH"] = _path_without_bubblewrap()
    wrapper = (sys.executable, "-m", "tests.support.refused", refusal or "nothing", str(user), "--")
    root = os.pathsep.join(filter(None, (str(ROOT), env.get("PYTHONPATH", ""))))
    return Flavour(
        flavour.name, (*wrapper, program, *rest), flavour.exit_on_terminate, {**env, "PYTHONPATH": root}
    )


@functools.cache
def _path_without_bubblewrap() -> str:
    """Return a search path in which there is every usual program but bwrap."""
    folder = Path(tempfile.mkdtemp(prefix="execserver-path-"))
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder, True)
    for place in ("/bin", "/usr/bin"):
        for entry in os.scandir(place):
            link = folder / entry.name
            if entry.name != "bwrap" and not link.is_symlink():
                link.symlink_to(entry.path)
    return str(folder)
