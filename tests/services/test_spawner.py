from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from execserver.protocol.errors import InternalError
from execserver.services.launch.spawner import Spawner, SpawnSpec
from execserver.zygote.groups import all_processes
from tests.services.spawning import (
    PATH,
    Running,
    only_zygote,
    running,
    spawner,
    spec,
    stopped,
)
from tests.support.leaks import snapshot
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def own_spawner() -> Iterator[Spawner]:
    with spawner() as made:
        yield made


def refusal(by: Spawner, what: SpawnSpec) -> str:
    with pytest.raises(InternalError) as caught:
        by.spawn(what)
    return caught.value.message


def test_a_process_on_pipes(own_spawner: Spawner) -> None:
    with running(own_spawner, b"sh", b"-c", b"printf out; printf err >&2; exit 3") as process:
        assert [name for name, _ in process.child.outputs] == ["stdout", "stderr"]
        assert (process.read("stdout"), process.read("stderr")) == (b"out", b"err")
        assert process.exit_code() == 3
        assert (process.child.stdin_fd, process.child.master_fd) == (None, None)
        assert (process.child.exited, process.child.exit_code, process.child.killed_by) == (True, 3, 0)
    assert own_spawner.live == []


def test_a_process_with_piped_stdin(own_spawner: Spawner) -> None:
    with running(own_spawner, b"head", b"-n1", pipe_stdin=True) as process:
        assert process.child.stdin_fd is not None
        assert not os.get_blocking(process.child.stdin_fd)
        os.write(process.child.stdin_fd, b"line\n")
        assert process.read("stdout") == b"line\n"
        assert process.exit_code() == 0


def test_a_process_on_a_terminal(own_spawner: Spawner) -> None:
    with running(own_spawner, b"sh", b"-c", b"stty size; echo direct >/dev/tty", tty=True) as process:
        child = process.child
        assert child.outputs == [("pty", child.master_fd)]
        assert child.stdin_fd == child.master_fd
        assert process.read("pty") == b"24 80\r\ndirect\r\n"
        assert process.exit_code() == 0
    # The descriptor is one: it was closed once.


def test_a_terminal_of_another_size(own_spawner: Spawner) -> None:
    what = spec(b"stty", b"size", tty=True)._replace(size=(5, 7))
    process = Running(own_spawner.spawn(what))
    assert process.read("pty") == b"5 7\r\n"
    process.exit_code()
    process.close()


def test_terminal_modes_are_the_kernels_defaults(own_spawner: Spawner) -> None:
    with running(own_spawner, b"stty", b"-a", tty=True) as process:
        modes = process.read("pty").split()
        process.exit_code()
    assert {b"icanon", b"echo", b"isig", b"icrnl", b"opost", b"onlcr", b"-iutf8"} <= set(modes)


def test_this_side_is_non_blocking_and_close_on_exec(own_spawner: Spawner) -> None:
    for tty in (False, True):
        with running(own_spawner, b"true", tty=tty, pipe_stdin=True) as process:
            for descriptor in {process.child.stdin_fd, *dict(process.child.outputs).values()}:
                assert descriptor is not None
                assert not os.get_blocking(descriptor)
                assert not os.get_inheritable(descriptor)
            process.exit_code()


def test_eight_parallel_children_hold_stdio_only(own_spawner: Spawner) -> None:
    what = spec(b"sh", b"-c", b"echo up; read line", pipe_stdin=True)
    starts = [gevent.spawn(own_spawner.spawn, what) for _ in range(8)]
    processes = [Running(start.get(timeout=20)) for start in starts]
    for process in processes:
        assert process.read_some("stdout") == b"up\n"
    held = [sorted(os.listdir(f"/proc/{process.child.pid}/fd")) for process in processes]
    assert held == [["0", "1", "2"]] * 8
    for process in processes:
        process.close()
    assert [process.exit_code() for process in processes] == [1] * 8


def test_an_exit_may_come_before_anyone_asks(own_spawner: Spawner) -> None:
    child = own_spawner.spawn(spec(b"sh", b"-c", b"exit 4"))
    wait_until(lambda: child.exited, pause=gevent.sleep)
    process = Running(child)
    assert process.codes == [4]
    process.close()


def test_death_by_signal(own_spawner: Spawner) -> None:
    with running(own_spawner, b"sh", b"-c", b"kill -SEGV $$") as process:
        assert process.exit_code() == 128 + signal.SIGSEGV
        assert process.child.killed_by == signal.SIGSEGV


def test_the_environment_is_passed_on_in_the_order_of_its_names(own_spawner: Spawner) -> None:
    env = {b"Z": b"1", b"PATH": b"/bin", b"": b"nameless", b"A=B": b"C"}
    process = Running(own_spawner.spawn(SpawnSpec([b"cat", b"/proc/self/environ"], env, b"/")))
    assert process.read("stdout") == b"=nameless\0A=B=C\0PATH=/bin\0Z=1\0"
    process.exit_code()
    process.close()


def test_an_environment_of_megabytes_in_its_own_order(own_spawner: Spawner) -> None:
    env = [(b"V%d" % (20 - number), b"x" * 100_000) for number in range(15)]
    process = Running(own_spawner.spawn(SpawnSpec([b"/bin/cat", b"/proc/self/environ"], env, b"/")))
    assert process.read("stdout") == b"".join(name + b"=" + value + b"\0" for name, value in env)
    process.exit_code()
    process.close()


@pytest.mark.parametrize(
    ("argv", "tty", "message"),
    [
        ((b"",), False, "missing program for pipe spawn"),
        ((b"",), True, "missing program for PTY spawn"),
        ((b"nope",), False, "No such file or directory (os error 2)"),
        ((b"/tmp",), False, "Permission denied (os error 13)"),
        ((b"true", b"\0"), False, "nul byte found in provided data"),
        ((b"true", b"x" * 9_000_000), False, "Argument list too long (os error 7)"),
        ((b"true", *[b"x" * 100_000] * 70), False, "Argument list too long (os error 7)"),
        (
            (b"nope",),
            True,
            'Unable to spawn nope because:\nNo viable candidates found in PATH "/usr/bin:/bin"',
        ),
        (
            (b"/no/such",),
            True,
            "Unable to spawn /no/such because it doesn't exist on the filesystem "
            "(ENOENT: No such file or directory)",
        ),
        ((b"./x",), True, "Unable to spawn /./x because it does not exist"),
        ((b"/tmp",), True, "Unable to spawn /tmp because it is a directory"),
    ],
)
def test_what_cannot_be_started(
    own_spawner: Spawner, argv: tuple[bytes, ...], tty: bool, message: str
) -> None:
    before = snapshot().descriptors
    assert refusal(own_spawner, spec(*argv, tty=tty)) == message
    assert snapshot().descriptors == before


def test_a_cwd_that_cannot_be_entered(own_spawner: Spawner) -> None:
    assert refusal(own_spawner, spec(b"true", cwd=b"/nope")) == "No such file or directory (os error 2)"
    assert refusal(own_spawner, spec(b"true", cwd=b"/etc/passwd")) == "Not a directory (os error 20)"


def test_no_descriptor_left_for_pipes(own_spawner: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(flags: int) -> tuple[int, int]:
        raise OSError(24, "")

    monkeypatch.setattr(os, "pipe2", full)
    assert refusal(own_spawner, spec(b"true")) == "No file descriptors available (os error 24)"


def test_no_descriptor_left_for_a_large_request(
    own_spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str, flags: int) -> int:
        raise OSError(24, "")

    monkeypatch.setattr(os, "memfd_create", full)
    message = "No file descriptors available (os error 24)"
    assert refusal(own_spawner, spec(b"true", b"x" * 100_000)) == message
    with running(own_spawner, b"true") as process:
        assert process.exit_code() == 0


def test_a_signal_reaches_the_group(own_spawner: Spawner) -> None:
    with running(own_spawner, b"sh", b"-c", b"sleep 60 & echo up; wait") as process:
        process.read_some("stdout")
        assert process.child.signal(signal.SIGTERM)
        assert process.exit_code() == 143
        assert process.read("stdout") == b""  # the grandchild has let go of it
        wait_until(lambda: not process.child.signal(signal.SIGTERM), pause=gevent.sleep)


def test_members_that_outlive_the_leader_can_be_killed(own_spawner: Spawner) -> None:
    with running(own_spawner, b"sh", b"-c", b"sleep 60 & exit 0") as process:
        assert process.exit_code() == 0
        assert process.child.survivors
        assert process.child.kill_group()
        assert process.read("stdout") == b""


def test_a_signal_the_kernel_refuses(own_spawner: Spawner) -> None:
    with running(own_spawner, b"sleep", b"60") as process:
        with pytest.raises(OSError, match="Invalid argument"):
            process.child.signal(4242)
        process.child.kill_group()
        assert process.exit_code() == 137


def test_a_killed_caller_leaves_no_process_and_no_descriptor(own_spawner: Spawner) -> None:
    before = snapshot().descriptors
    zygote = only_zygote()
    with stopped(zygote):
        start = gevent.spawn(own_spawner.spawn, spec(b"sh", b"-c", b"sleep 61"))
        gevent.sleep(0)
        start.kill()
    with running(own_spawner, b"true") as process:
        process.exit_code()
    wait_until(lambda: own_spawner.live == [], pause=gevent.sleep)
    wait_until(lambda: zygote not in {stat[1] for stat in all_processes().values()}, pause=gevent.sleep)
    assert snapshot().descriptors == before


def test_five_hundred_processes_live_at_once(own_spawner: Spawner) -> None:
    processes = [
        Running(own_spawner.spawn(spec(b"sleep", b"60", tty=number % 5 < 3))) for number in range(500)
    ]
    assert len(own_spawner.live) == 500
    own_spawner.shutdown(0.0)
    assert {process.exit_code() for process in processes} <= {129, 137, 143}
    for process in processes:
        process.close()


def test_as_the_first_process_of_a_container() -> None:
    """Ended strangers are reaped there, and a killed zygote leaves nothing."""
    unshare = ["unshare", "--map-root-user", "--fork", "--pid", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare --fork --pid --mount-proc is refused here")
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
import gevent
from execserver.services.launch import spawner as module
module._CONTAINER_REAP_S = 0.02
from execserver.zygote.reaper import own_children
from tests.services.spawning import only_zygote, running, spawner
from tests.support.waiting import wait_until
assert os.getpid() == 1
with spawner() as by:
    zygote = only_zygote()
    with running(by, b"sh", b"-c", b"setsid sleep 60 & sleep 60") as process:
        os.posix_spawn("/bin/sh", ["sh", "-c", "(sleep 0.1 &)"], {{}}, setsid=True)
        wait_until(lambda: own_children() == [zygote], pause=gevent.sleep)
        os.kill(zygote, signal.SIGKILL)
        print(process.exit_code())
        wait_until(lambda: own_children() == [], pause=gevent.sleep)
    print("clean")
"""
    done = subprocess.run(
        [*unshare, sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.stderr) == ("137\nclean\n", "")


def test_parallel_starts_of_good_and_bad_programs_keep_apart(own_spawner: Spawner) -> None:
    def start(number: int) -> bytes:
        if number % 3 == 0:
            return refusal(own_spawner, spec(b"nope%d" % number)).encode()
        process = Running(own_spawner.spawn(SpawnSpec([b"echo", b"%d" % number], PATH, b"/")))
        out = process.read("stdout")
        assert process.exit_code() == 0
        process.close()
        return out

    starts = [gevent.spawn(start, number) for number in range(60)]
    missing = b"No such file or directory (os error 2)"
    assert [greenlet.get(timeout=20) for greenlet in starts] == [
        missing if number % 3 == 0 else b"%d\n" % number for number in range(60)
    ]
