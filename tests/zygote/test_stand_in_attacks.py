"""What a hostile process can do to its stand-in, or on the way to it: nothing but to itself.

And where no stand-in can be, the process waits in its exec, and its program runs once all the same.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from execserver.sandbox.plan import FILTER_OPEN, NETWORK_HOST
from execserver.zygote.supervision.stand_in.code import CODES
from tests.conftest import LONG
from tests.support.roots import plan
from tests.support.sandbox_init import MAKERS
from tests.support.waiting import wait_until
from tests.zygote.python_inside import python
from tests.zygote.supervised import ENV, FULL_ACCESS, PLACES, Supervised, allow

pytestmark = pytest.mark.skipif(platform.machine() not in CODES, reason="there is no code for this CPU")

ROUNDS = 20 if LONG else 6  # in each place, for each user, with each maker of sandboxes
FREE = plan(network=NETWORK_HOST, syscall_filter=FILTER_OPEN)  # where tracing and sockets are allowed


@pytest.fixture(params=MAKERS)
def maker(request: pytest.FixtureRequest) -> str:
    """Return what makes the sandboxes: Python, or the compiled template."""
    return str(request.param)


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    """Return a program that notes each of its runs, and ends with 3."""
    tmp_path.chmod(0o777)
    tool = tmp_path / "tool"
    tool.write_text(f"#!/bin/sh\necho ran >> {tmp_path}/runs\nexit 3\n")
    tool.chmod(0o755)
    return tool


def runs(tool: Path) -> int:
    """Return how often the program ran."""
    noted = tool.parent / "runs"
    return len(noted.read_text().splitlines()) if noted.exists() else 0


@pytest.mark.parametrize("place", PLACES)
def test_another_file_in_the_place_of_the_stand_in_never_runs(
    zygote: Supervised, place: str, counted: Path
) -> None:
    # Threads of the process that executes put a file over every free number, again and again.
    code = f"""
    evil = os.open("/usr/bin/true", os.O_PATH)
    def attack():
        def overwrite(numbers):
            while True:
                for number in numbers:
                    libc.dup2(evil, number)
        for _ in range(2):
            threading.Thread(target=overwrite, args=(range(evil + 1, evil + 4),), daemon=True).start()
        os.execv("{counted}", ["tool"])
    print([in_child(attack) for _ in range({ROUNDS})], flush=True)
    """
    _, out, err = zygote.call(python(code), allow(str(counted)), place=place)
    codes = json.loads(out)
    # -9: the file was noticed only when it had been executed, before its first instruction.
    assert set(codes) <= {3, -9}, (out, err)
    assert codes.count(3) <= runs(counted) <= ROUNDS


def test_a_path_that_is_written_to_ends_in_the_exec(zygote: Supervised, counted: Path) -> None:
    code = f"""
    def attack():
        path = ctypes.create_string_buffer(b"{counted}")
        end = len(path) - 1
        def overwrite():
            while True:
                path[end] = b"x"
                path[end] = b"\\0"
        threading.Thread(target=overwrite, daemon=True).start()
        while True:
            call(59, path, vector(b"tool"), vector())
    print([in_child(attack) for _ in range(20)], flush=True)
    """
    _, out, err = zygote.call(python(code), allow(str(counted)))
    assert out == f"{[3] * 20}\n", err
    # A path that is no program while it is judged is the kernel's, which may find one, and run it inside.
    assert runs(counted) <= 20


@pytest.mark.parametrize("place", [FULL_ACCESS, "free"])
def test_nobody_traces_a_stand_in_and_there_is_nothing_in_it_to_take(
    zygote: Supervised, place: str, tmp_path: Path
) -> None:
    code = """
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    pid = os.posix_spawn("/bin/bash", ["bash", "-c", f"read -u {reader} x; exit $x"], {})
    print(errno.errorcode[-call(101, 0x4206, pid, 0, 0)], errno.errorcode[-call(101, 16, pid, 0, 0)])
    while os.listdir(f"/proc/{pid}/fd"):
        pass
    print(open(f"/proc/{pid}/comm").read().strip())
    pidfd = os.pidfd_open(pid)
    print({errno.errorcode.get(-call(438, pidfd, number, 0)) for number in range(64)})
    os.write(writer, b"4\\n")
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    """
    given: dict[str, Any] = {"place": FULL_ACCESS} if place == FULL_ACCESS else {"view": FREE}
    wanted = "EPERM EPERM\nbash\n{'EBADF'}\n4\n"
    assert zygote.call(python(code), allow("bash"), **given) == (0, wanted, "")


def test_a_stand_in_whose_memory_is_written_to_executes_nothing(zygote: Supervised, tmp_path: Path) -> None:
    # Its code is replaced by an execve of a program that may run inside.  It is refused, and the program
    # outside is ended with whoever stood in for it.
    code = """
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    pid = os.posix_spawn("/bin/bash", ["bash", "-c", f"read -u {reader} x; exit $x"], {})
    while os.listdir(f"/proc/{pid}/fd"):
        pass
    # lea rdi, [rip+30]; xor esi, esi; xor edx, edx; mov eax, 59; syscall
    # neg eax; mov edi, eax; mov eax, 231; syscall
    words = "488d3d1e000000" "31f6" "31d2" "b83b000000" "0f05" "f7d8" "89c7" "b8e7000000" "0f05"
    evil = bytes.fromhex(words) + b"\\x90" * 8 + b"/usr/bin/true\\0"
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    start = 0x4000b0
    content = os.pread(memory, 200, start)
    wait = start + content.index(bytes.fromhex("b8220000000f05"))
    os.pwrite(memory, evil, wait + 5)  # where it waits
    os.kill(pid, signal.SIGWINCH)
    print(errno.errorcode.get(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])), flush=True)
    """
    for _ in range(3):
        assert zygote.call(python(code), allow("bash"), place=FULL_ACCESS) == (0, "EPERM\n", "")


@pytest.mark.parametrize("filters", ["errno", "kill"])
def test_who_has_a_filter_of_its_own_runs_its_programs_under_it(
    zygote: Supervised, counted: Path, filters: str
) -> None:
    verdict = {"errno": 0x00050001, "kill": 0x80000000}[filters]
    code = f"""
    def filtered():
        # execveat, which the exec of the stand-in would be
        lines = [(0x20, 0, 0, 0), (0x15, 0, 1, 322), (0x06, 0, 0, {verdict}), (0x06, 0, 0, 0x7FFF0000)]
        text = b"".join(struct.pack("HBBI", *line) for line in lines)
        buffer = ctypes.create_string_buffer(text, len(text))
        head = ctypes.create_string_buffer(struct.pack("@HP", len(lines), ctypes.addressof(buffer)))
        assert call(317, 1, 0, head) == 0
        os.execv("{counted}", ["tool"])
    print(in_child(filtered), flush=True)
    """
    inside = "grep -q NoNewPrivs:.1 /proc/self/status && exit 3"
    counted.write_text(f"#!/bin/sh\necho ran >> {counted.parent}/runs\n{inside}\n")
    assert zygote.call(python(code), allow(str(counted)), place=FULL_ACCESS) == (0, "3\n", "")
    assert runs(counted) == 1


def test_who_has_no_number_free_waits_in_its_exec(zygote: Supervised, counted: Path) -> None:
    code = f"""
    import resource
    def full():
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        os.execv("{counted}", ["tool"])
    print(in_child(full), flush=True)
    """
    assert zygote.call(python(code), allow(str(counted))) == (0, "3\n", "")
    assert runs(counted) == 1


def test_two_threads_that_execute_at_once_become_one_program(zygote: Supervised, counted: Path) -> None:
    code = f"""
    def both():
        meet = threading.Barrier(4)
        def execute():
            meet.wait()
            os.execv("{counted}", ["tool"])
        for _ in range(3):
            threading.Thread(target=execute).start()
        execute()
    print({{in_child(both) for _ in range(10)}}, flush=True)
    """
    assert zygote.call(python(code), allow(str(counted))) == (0, "{3}\n", "")


@pytest.mark.parametrize("place", PLACES)
def test_a_storm_of_signals_neither_loses_nor_doubles_a_program(
    zygote: Supervised, place: str, counted: Path
) -> None:
    code = f"""
    signal.signal(signal.SIGWINCH, lambda *_: None)
    signal.siginterrupt(signal.SIGWINCH, False)
    def stormed():
        pid = os.getpid()
        if os.fork() == 0:
            while os.getppid() == pid:
                os.kill(pid, signal.SIGWINCH)
            os._exit(0)
        os.execv("{counted}", ["tool"])
    print([in_child(stormed) for _ in range(10)], flush=True)
    """
    assert zygote.call(python(code), allow(str(counted)), place=place) == (0, f"{[3] * 10}\n", "")
    assert runs(counted) == 10


@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_left_of_a_call_in_whichever_state_it_ends(
    zygote: Supervised, place: str, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / "met").touch()
    (tmp_path / "met").chmod(0o666)
    mark = b"MARK=%d" % id(tmp_path)
    met = f"echo x >> {tmp_path}/met; exec sleep 60"
    text = f"""
    for i in 1 2 3; do bash -c '{met}' & done; bash -c '{met}' & kill -STOP $!
    until [ $(wc -l < {tmp_path}/met) -ge 3 ]; do sleep 0.02; done
    for i in 1 2 3 4 5 6; do bash -c '{met}' & done
    """
    assert zygote.call(text, allow("bash"), place=place, env=[*ENV, mark])[0] == 0
    wait_until(lambda: _marked(mark) == [])


def _marked(entry: bytes) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if entry in (process / "environ").read_bytes().split(b"\0"):
                found.append(process.name)
        except OSError:
            pass
    return found
