from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from execserver.zygote.libc import Libc
from tests.zygote.harness import read_to_end

ROOT = Path(__file__).parents[2]


@pytest.fixture
def libc() -> Libc:
    return Libc()


def run_on_pipes(libc: Libc, path: bytes, argv: list[bytes], env: list[bytes]) -> tuple[int, bytes]:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        pid = libc.spawn_on_pipes(path, argv, env, None, [write_end, write_end])
    except OSError:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    out = read_to_end(read_end)
    return os.waitpid(pid, 0)[1], out


def test_a_program_gets_exactly_its_arguments_and_environment(libc: Libc) -> None:
    code = b"import os, sys; print(sys.orig_argv[0], open('/proc/self/environ','rb').read())"
    env = [b"B=1", b"A=2", b"=empty name", b"X=Y=Z", b"A=again"]
    status, out = run_on_pipes(libc, os.fsencode(sys.executable), [b"called", b"-I", b"-S", b"-c", code], env)
    assert status == 0
    assert out == b"called b'B=1\\x00A=2\\x00=empty name\\x00X=Y=Z\\x00A=again\\x00'\n"


def test_a_failed_exec_raises_its_errno(libc: Libc) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        run_on_pipes(libc, b"/no/such/program", [b"x"], [])
    assert caught.value.errno == errno.ENOENT


def test_children_start_with_default_signals_and_an_empty_mask(libc: Libc) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGCHLD})
    try:
        _, out = run_on_pipes(libc, b"/bin/grep", [b"grep", b"-E", b"Sig(Blk|Ign)", b"/proc/self/status"], [])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1, signal.SIGCHLD})
    assert out.split() == [b"SigBlk:", b"0" * 16, b"SigIgn:", b"0" * 16]


def test_a_watched_signal_shows_on_the_descriptor() -> None:
    """In a process of its own: the block stays."""
    code = b"""
import os, sys
sys.path.insert(0, %r)
from execserver.zygote.libc import Libc
watch = Libc().block_and_watch([15], 17)
os.kill(os.getpid(), 15)
try:
    os.read(watch, 128)
except BlockingIOError:
    print("quiet")
os.kill(os.getpid(), 17)
print(int.from_bytes(os.read(watch, 128)[:4], "little"), os.get_inheritable(watch))
""" % str(ROOT)
    status, out = run_on_pipes(Libc(), os.fsencode(sys.executable), [b"python", b"-I", b"-c", code], [])
    assert (status, out) == (0, b"quiet\n17 False\n")


def test_a_signal_goes_to_the_process_of_the_pidfd(libc: Libc) -> None:
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    pid = libc.spawn_on_pipes(b"/bin/sleep", [b"sleep", b"60"], [], null, [null, null])
    pidfd = os.pidfd_open(pid)
    try:
        libc.send_signal(pidfd, signal.SIGUSR1)
        assert os.waitpid(pid, 0)[1] == signal.SIGUSR1
        with pytest.raises(ProcessLookupError):
            libc.send_signal(pidfd, signal.SIGUSR1)
    finally:
        os.close(pidfd)
        os.close(null)
