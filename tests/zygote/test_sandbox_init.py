"""The sandbox init: it is out of reach, and whatever hangs, fails or is killed has an end."""

from __future__ import annotations

import _socket
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from execserver.sandbox.kernel.syscalls import Kernel, number_of
from execserver.sandbox.plan import (
    HIDDEN_FILE,
    PASSAGE,
    WRITE,
)
from execserver.sandbox.plan_record import encode_plan
from execserver.zygote.confine.standalone import confine_self_then_call, run_confined
from execserver.zygote.confinement import NATIVE, Confinement
from execserver.zygote.records import Begun, Failed, SpawnRequest, Started
from execserver.zygote.stages import STAGE_EXEC, STAGE_ROOT
from tests.support.proc import children_of, is_kept_ready
from tests.support.roots import (
    OLD_KERNEL,
    REFUSED,
    USERS,
    become,
    call,
    give,
    in_child,
    mount,
    plan,
    run,
)
from tests.support.source import ROOT
from tests.support.waiting import wait_until
from tests.zygote.confined_harness import ConfinedZygote
from tests.zygote.harness import PATH, read_to_end

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others and mount")

# What a view of every kind of mount, a terminal, and every way to fail need, with imports refused.
IMPORTS = """
import os, sys
sys.path.insert(0, {root!r})
from execserver.zygote.confine import sandboxes  # everything the zygote loads while it is idle
from execserver.sandbox.plan import *
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.rootfs.builder import RootFailed
from execserver.zygote.confine.standalone import confine_self_then_call, run_confined

class Refused:
    def find_spec(self, name, path=None, target=None):
        os.write(2, ("imports " + name + "\\n").encode())
        return None

ws = {ws!r}.encode()
def path(name): return ws + b"/" + name
mounts = (Mount(WRITE, ws, ws), Mount(READ, path(b"read"), path(b"read")), Mount(PASSAGE, path(b"passage")),
    Mount(WRITE, path(b"passage/in"), path(b"passage/in")), Mount(HIDDEN_DIRECTORY, path(b"hidden")),
    Mount(HIDDEN_FILE, path(b"file")))
env = [b"PATH=/usr/bin:/bin"]
kernels = [Kernel(), Kernel({old!r})]
sys.meta_path.insert(0, Refused())
for kernel in kernels:
    for root in (ROOT_READ_ONLY, ROOT_EMPTY):
        plan = SandboxPlan(root, mounts if root == ROOT_READ_ONLY else mounts[:2])
        for argv, cwd in (((b"true",), ws), ((b"no-such-program",), ws), ((b"true",), b"/nonesuch")):
            run_confined(plan, argv, env, cwd, kernel=kernel)
        confine_self_then_call(plan, lambda: 0, kernel)
    gone = SandboxPlan(ROOT_READ_ONLY, (Mount(READ, path(b"gone"), path(b"gone")),))
    try:
        run_confined(gone, [b"x"], env, ws, kernel=kernel)
    except RootFailed:
        pass
"""


def test_nothing_is_imported_once_the_sandbox_begins(tmp_path: Path) -> None:
    for name in ("read", "passage", "passage/in", "hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    code = IMPORTS.format(root=str(ROOT), ws=str(tmp_path), old=OLD_KERNEL)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.startswith("imports")] == []
    # The messages of commands that cannot start.  One whose folder is missing starts in `/`, if there is one.
    assert len(lines) == 8


@pytest.mark.parametrize("user", USERS)
def test_the_first_process_is_out_of_reach_of_its_own_user(user: int) -> None:
    with ConfinedZygote(user) as zygote:
        null = os.open("/dev/null", os.O_RDWR)
        started = zygote.ask(b"/bin/sleep", b"1000", plan=plan(), descriptors=[null, null])
        os.close(null)
        assert isinstance(started, Started)

        def act() -> int:
            os.write(1, b"%d" % privileges_of_other(started.pid))
            return 0

        if user:
            assert in_child(act, user).out == "0"
        zygote.signal(started.request_id, signal.SIGKILL)
        zygote.exit_of(started.request_id)


def privileges_of_other(pid: int) -> int:
    """Return how many of a process's private files can be opened."""
    opened = 0
    for name in ("environ", "maps", "mem", "root", "cwd", "exe"):
        try:
            os.close(os.open(f"/proc/{pid}/{name}", os.O_RDONLY))
            opened += 1
        except OSError:
            continue
    return opened


_SESSION = -3  # this process's session keyring


@pytest.mark.parametrize("user", USERS)
def test_keys_of_the_session_stay_outside(user: int) -> None:
    def search() -> object:
        try:
            return Kernel().call("keyctl", 10, _SESSION, b"user", b"execserver", 0)
        except OSError as error:
            return -(error.errno or 0)

    def act() -> int:
        kernel = Kernel()
        try:
            kernel.call("keyctl", 1, None)
            kernel.call("add_key", b"user", b"execserver", b"secret", 6, _SESSION)
        except OSError:
            return 77 << 8
        assert isinstance(search(), int)

        def function() -> int:
            os.write(1, repr(search()).encode())
            return 0

        return confine_self_then_call(plan(), function) << 8

    outcome = in_child(act, user)
    if outcome.code == 77:
        pytest.skip("no keys in this kernel, or none for us")
    assert outcome.out == f"{-errno.ENOSYS}", outcome  # the filter has no calls for keys at all


class Disturbed(Kernel):
    """A kernel in which something happens before the view is entered."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        real, number = self.syscall, number_of(self.machine, "pivot_root")

        def disturbed(called: int, *arguments: object) -> int:
            if called == number:
                act()
            return int(real(called, *arguments))

        self.syscall = disturbed  # type: ignore[assignment]


def slow() -> Kernel:
    return Disturbed(lambda: time.sleep(60))


@pytest.mark.parametrize("user", USERS)
def test_a_view_that_hangs_ends_at_the_deadline(user: int) -> None:
    with ConfinedZygote(user, slow()) as zygote:
        failed = zygote.refusal(b"/bin/true", plan=plan(), deadline_ns=time.monotonic_ns() + 2_000_000_000)
        assert (failed.stage, failed.errno) == (STAGE_EXEC, 110)
        assert zygote.sh("echo next")[:2] == (0, "next\n")


@pytest.mark.parametrize("user", USERS)
def test_a_view_that_hangs_delays_nobody(user: int) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    with ConfinedZygote(user, slow()) as zygote:
        deadline_ns = time.monotonic_ns() + 3_000_000_000
        request = SpawnRequest(
            1000,
            [b"/bin/true"],
            [PATH],
            b"/",
            deadline_ns=deadline_ns,
            confinement=Confinement(NATIVE, encode_plan(plan())),
        )
        zygote.send(request, [null, null])
        assert zygote.receive() == Begun(1000)
        assert zygote.sh("echo plain")[:2] == (0, "plain\n")
        assert time.monotonic_ns() < deadline_ns
        failed = zygote.answer(1000)
        assert isinstance(failed, Failed)
        assert (failed.stage, failed.errno) == (STAGE_EXEC, 110)
        wait_until(lambda: all(map(is_kept_ready, children_of(zygote.pid))))
    os.close(null)


def test_a_first_process_that_dies_is_a_failure() -> None:
    with ConfinedZygote(USERS[-1], Disturbed(lambda: os._exit(3))) as zygote:
        failed = zygote.refusal(b"/bin/true", plan=plan())
        assert (failed.stage, failed.details) == (STAGE_ROOT, [b"its first process was killed"])


@pytest.mark.parametrize("refused", ["capset", "prctl", "seccomp", "umount2"])
def test_a_step_that_fails_lets_nothing_run(refused: str, tmp_path: Path) -> None:
    give(tmp_path, USERS[-1])
    outcome = run(
        plan(mount(WRITE, tmp_path)), f"touch {tmp_path}/ran", user=USERS[-1], kernel=Kernel((refused,))
    )
    assert outcome.status == REFUSED << 8
    assert "Function not implemented" in outcome.refusal
    assert list(tmp_path.iterdir()) == []


# Without a zygote.


def started_alone(script: str, user: int) -> tuple[int, int]:
    """Fork a caller of run_confined; return its pid and a pipe with the program's output."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ours)
            null = os.open("/dev/null", os.O_RDWR)
            for number, descriptor in enumerate((null, theirs, theirs)):
                os.dup2(descriptor, number)
            os.close(theirs)
            become(user)
            status = run_confined(plan(), [b"/bin/sh", b"-c", script.encode()], [PATH], b"/")
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        finally:
            os._exit(99)
    os.close(theirs)
    return pid, ours


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("signum", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
def test_signals_are_passed_on(user: int, signum: signal.Signals) -> None:
    name = signum.name.removeprefix("SIG")
    pid, output = started_alone(
        f"trap 'echo got; exit 6' {name}; echo on; while :; do sleep 0.01; done", user
    )
    assert os.read(output, 100) == b"on\n"
    os.kill(pid, signum)
    assert read_to_end(output).endswith(b"got\n")  # the shell may tell of its own child's end before
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 6


@pytest.mark.parametrize("user", USERS)
def test_a_killed_caller_takes_everything_with_it(user: int) -> None:
    pid, output = started_alone("setsid sleep 1000 & echo on; sleep 1000", user)
    assert os.read(output, 100) == b"on\n"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert read_to_end(output) == b""  # nobody holds it any more


@pytest.mark.parametrize("user", USERS)
def test_a_function_has_the_view_and_its_result_is_the_status(user: int, tmp_path: Path) -> None:
    give(tmp_path, user)
    (tmp_path / "in").mkdir()
    give(tmp_path, user)

    def function() -> object:
        results = []
        for path in (tmp_path / "in" / "x", tmp_path / "y", Path("/etc/x")):
            try:
                path.write_text("x")
                results.append(0)
            except OSError as error:
                results.append(error.errno or 0)
        return results, os.getpid(), sorted(os.listdir("/proc/self/fd"))[:3]

    outcome = call(plan(mount(WRITE, tmp_path / "in")), function, user=user)
    assert outcome.value == ([0, 30, 30], 1, ["0", "1", "2"])


@pytest.mark.parametrize("kind", [PASSAGE, HIDDEN_FILE])
def test_a_worker_whose_plan_fails_is_a_failure(kind: str, tmp_path: Path) -> None:
    gone = mount(kind, tmp_path)
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    with ConfinedZygote(USERS[-1]) as zygote, closing(ours), closing(theirs):
        tmp_path.rename(f"{tmp_path}-moved")
        failed = zygote.ask_worker(plan(gone), [theirs.fileno()])
        Path(f"{tmp_path}-moved").rename(tmp_path)
    assert isinstance(failed, Failed)
    assert failed.stage == STAGE_ROOT
