from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.zygote.launch import start_zygote
from tests.support.proc import require_a_look_into
from tests.zygote.harness import Zygote

ROOT = Path(__file__).parents[2]


def test_the_zygote_has_an_empty_environment_and_its_own_session() -> None:
    with Zygote() as zygote:
        zygote.start_quietly(b"true")
        require_a_look_into(zygote.pid)
        assert Path(f"/proc/{zygote.pid}/environ").read_bytes() == b""
        assert os.getsid(zygote.pid) == zygote.pid
        assert Path(f"/proc/{zygote.pid}/cwd").readlink() == Path("/")


def test_the_zygote_holds_its_socket_and_no_descriptor_of_the_server(tmp_path: Path) -> None:
    stray = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(stray, True)
    try:
        with Zygote() as zygote:
            zygote.start_quietly(b"true")
            pid = zygote.pid
            require_a_look_into(pid)
            numbers = {
                int(entry.name): entry.readlink() for entry in Path(f"/proc/{zygote.pid}/fd").iterdir()
            }
    finally:
        os.close(stray)
    assert numbers[0] == numbers[1] == Path("/dev/null")
    assert numbers[2] == Path("/proc/self/fd/2").readlink()
    assert str(numbers[3]).startswith("socket:")
    own_files = {"anon_inode:[signalfd]", f"/proc/{pid}/oom_score_adj"}
    assert {str(target) for number, target in numbers.items() if number > 3} == own_files


def test_a_process_of_the_same_user_cannot_look_into_the_zygote() -> None:
    """Told from a process without capabilities, since root with them may look into anything."""
    code = f"""
import ctypes, os, subprocess, sys
if sys.argv[1] == "with":
    for capability in range(64):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:-1], "without"])
sys.path.insert(0, {str(ROOT)!r})
from tests.support.waiting import wait_until
from tests.zygote.harness import Zygote
def readable(pid):
    try:
        return bool(os.readlink(f"/proc/{{pid}}/fd/0")) and bool(open(f"/proc/{{pid}}/maps").read())
    except PermissionError:
        return False
with Zygote() as zygote:
    child = zygote.start_quietly(b"sleep", b"60")
    # An exec closes what tells of its success before it lets others look in again.
    wait_until(lambda: readable(child.pid))
    print(readable(zygote.pid), readable(child.pid))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "with"], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.stderr) == ("False True\n", "")


def test_polite_signals_do_not_end_the_zygote() -> None:
    with Zygote() as zygote:
        zygote.start_quietly(b"true")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            os.kill(zygote.pid, number)
        status, out, _ = zygote.run(b"echo", b"alive")
        assert (status, out) == (0, b"alive\n")


def test_children_have_the_given_soft_limit_although_the_server_raised_its_own() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with Zygote(soft_nofile=321) as zygote:
            _, out, _ = zygote.run(b"sh", b"-c", b"ulimit -Sn; ulimit -Hn")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert out.split() == [b"321", b"%d" % hard]


def test_the_socket_is_non_blocking_and_close_on_exec() -> None:
    process = start_zygote(ExecServerRuntimePaths.detect().zygote_command(), 1024)
    assert not os.get_blocking(process.sock_fd)
    assert fcntl.fcntl(process.sock_fd, fcntl.F_GETFD) == fcntl.FD_CLOEXEC
    os.close(process.sock_fd)
    assert os.waitpid(process.pid, 0)[1] == 0


def test_a_command_that_cannot_be_run_is_an_error_and_leaves_nothing_open() -> None:
    with pytest.raises(FileNotFoundError):
        start_zygote([b"/no/such/zygote"], 1024)


def test_closed_standard_descriptors_do_not_confuse_the_zygote() -> None:
    """A server started with stdin, stdout and stderr closed: no pipe may come to lie on 0, 1 or 2."""
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
report = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
for number in (0, 1, 2):
    os.close(number)
from tests.support.proc import require_a_look_into
from tests.zygote.harness import Zygote
with Zygote() as zygote:
    os.write(report, repr(zygote.run(b"sh", b"-c", b"echo out; echo err >&2")).encode())
"""
    with subprocess.Popen([sys.executable, "-c", code, "/dev/stderr"], stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        assert server.stderr.read() == b"(0, b'out\\n', b'err\\n')"
