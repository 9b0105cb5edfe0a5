"""Many callers at once, large ones and slow ones: each gets its own, and none holds the others up."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from execserver.sandbox.kernel.syscalls import Kernel
from execserver.zygote.confinement import LANDLOCK, NATIVE
from execserver.zygote.supervision.exec_broker import HELD_AT_ONCE
from execserver.zygote.supervision.records import ACCEPT, DECLINE
from execserver.zygote.supervision.stand_in.stand_ins import STAND_IN
from execserver.zygote.supervision.trap.notify import WAIT_KILLABLE
from execserver.zygote.supervision.trap.process_files import MOST_DESCRIPTORS
from tests.conftest import LONG
from tests.support.waiting import wait_until
from tests.zygote.python_inside import python
from tests.zygote.supervised import (
    FULL_ACCESS,
    Supervised,
    allow,
    forbid,
    prompt,
)


def test_threads_and_vforks_get_what_is_theirs(zygote: Supervised) -> None:
    spawns = 200 if LONG else 25
    code = """
    import _posixsubprocess
    def work(results):
        import subprocess
        for number in range(SPAWNS):
            name = "true" if number % 2 else "false"
            results.append(subprocess.run([name]).returncode == (number + 1) % 2)
    sys.path[:0] = ["/usr/lib/python3"]
    results = []
    threads = [threading.Thread(target=work, args=(results,)) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(len(results), all(results), flush=True)
    thread = threading.Thread(target=lambda: os.execv("/usr/bin/false", ["false"]))
    thread.start()
    time.sleep(20)
    """
    script = python(code.replace("SPAWNS", str(spawns))).replace("-I -S", "-I")
    code_, out, err = zygote.call(f"({script}\n); echo $?", allow("true"), allow("false"))
    assert (code_, out, err) == (0, f"{8 * spawns} True\n1\n", "")


def test_jobs_in_the_background_and_traps_do_not_disturb_each_other(zygote: Supervised) -> None:
    script = """
    trap 'n=$((n+1))' CHLD USR1
    for i in $(seq 60); do (bash -c "kill -USR1 $$; exit $((i % 7))"; echo $((i % 7)) $?) & done
    for job in $(jobs -p); do while kill -0 $job 2>/dev/null; do wait $job; done; done
    """
    _, out, err = zygote.call(script, allow("bash"), place=LANDLOCK)
    lines = out.splitlines()
    assert len(lines) == 60, err
    assert all(line.split()[0] == line.split()[1] for line in lines)


@pytest.mark.parametrize("place", [NATIVE, LANDLOCK])
def test_a_call_outlives_whoever_is_killed_while_somebody_is_asked(
    zygote: Supervised, tmp_path: Path, place: str
) -> None:
    asked = tmp_path / "asked"
    asked.write_text("#!/bin/sh\nexec sleep 30\n")
    asked.chmod(0o755)
    rounds = 300 if LONG else 40
    script = f"for n in $(seq {rounds}); do {asked} & kill -KILL $!; wait $!; done 2> /dev/null; echo fine"
    found = zygote.call(script, prompt(str(asked)), place=place, answer=lambda question: ACCEPT)
    assert found == (0, "fine\n", "")


def test_large_environments_arrive_whole(zygote: Supervised) -> None:
    script = """
    for i in $(seq 300); do export V$i=$(printf %01000d $i); done
    env | grep -c '^V'; env | wc -c
    python3 -c 'import subprocess; subprocess.run(["printf", "%s", "x" * 131070])' | wc -c
    """
    code, out, err = zygote.call(script, allow("env"), allow("printf"))
    count, size, argument = map(int, out.split())
    assert (code, count, argument, err) == (0, 300, 131070, "")
    assert size > 300_000


def test_more_callers_than_are_held_wait_for_their_turn(zygote: Supervised) -> None:
    count = HELD_AT_ONCE + 20
    script = f"for i in $(seq {count}); do id & done; echo all; wait"
    with zygote.shell(script, prompt("id")) as shell:
        shell.follow(lambda: len(shell.questions) >= HELD_AT_ONCE and "all\n" in shell.out)
        asked = len(shell.questions)
        assert asked == HELD_AT_ONCE
        for question in shell.questions:
            shell.answer(question.number, DECLINE)
        assert shell.end(lambda _: DECLINE) == 0
        assert len(shell.questions) == count
        assert shell.err.count("User declined") == count


def test_a_program_with_too_many_descriptors_is_not_executed(zygote: Supervised) -> None:
    code = f"""
    for _ in range({MOST_DESCRIPTORS}):
        os.set_inheritable(os.open("/dev/null", os.O_RDONLY), True)
    try:
        os.execv("/usr/bin/true", ["true"])
    except OSError as error:
        print(errno.errorcode[error.errno])
    """
    assert zygote.call(python(code), allow("true")) == (0, "EMFILE\n", "")


def test_an_errors_reader_that_does_not_read_holds_nobody_up(zygote: Supervised) -> None:
    code = """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 65536)
    except BlockingIOError:
        os.set_blocking(writer, True)
    os.dup2(writer, 2)
    print(in_child(lambda: os.execv("/usr/bin/uname", ["uname"])))
    os.close(2)
    print(in_child(lambda: os.execv("/usr/bin/uname", ["uname"])))
    """
    assert zygote.call(python(code), forbid("uname")) == (0, "1\n1\n", "")


def test_a_supervisor_without_free_descriptors_refuses(user: int, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The zygote is forked from this process, which may have some open for earlier tests.
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 28, before[1]))
    try:
        zygote = Supervised(user, folder=os.fsencode(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    script = "for i in $(seq 60); do uname & done; wait; echo end"
    with zygote, zygote.shell(script, prompt("uname")) as shell:
        shell.follow(lambda: len(shell.err.splitlines()) + len(shell.questions) >= 60)
        for question in shell.questions:
            shell.answer(question.number, DECLINE)
        assert shell.end() == 0
        assert 10 < len(shell.questions) < 60
        assert shell.err.count("Too many open files") + len(shell.questions) == 60
        assert shell.out == "end\n"


@pytest.mark.parametrize("without", [[WAIT_KILLABLE], [WAIT_KILLABLE, STAND_IN]])
def test_on_older_kernels_a_signal_does_not_start_a_program_twice(
    user: int, tmp_path: Path, without: list[str]
) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    mark.chmod(0o666)
    tool = tmp_path / "tool"
    tool.write_text(f"#!/bin/sh\necho x >> {mark}\nsleep 0.4\n")
    tool.chmod(0o755)
    code = f"""
    signal.signal(signal.SIGWINCH, lambda *_: None)
    signal.siginterrupt(signal.SIGWINCH, False)
    pid = os.getpid()
    if os.fork() == 0:
        while os.getppid() == pid:
            os.kill(pid, signal.SIGWINCH)
            time.sleep(0.001)
        os._exit(0)
    os.execv("{tool}", ["tool"])
    """
    with Supervised(user, Kernel(without), os.fsencode(tmp_path)) as zygote:
        script = f"({python(code)}\n); echo $?"
        assert zygote.call(script, allow(str(tool)), place=FULL_ACCESS) == (0, "0\n", "")
    assert mark.read_text() == "x\n"


def test_a_stopped_caller_can_still_be_killed(zygote: Supervised, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    ready.touch()
    ready.chmod(0o666)
    script = f"""
    bash -c 'echo x > {ready}; sleep 20; :' & while ! [ -s {ready} ]; do sleep 0.02; done
    kill -STOP $!; kill -CONT $!; kill -STOP $!; kill -KILL $!; wait $!; echo $?
    """
    code, out, _ = zygote.call(script, allow("bash"))
    assert (code, out) == (0, "137\n")
    wait_until(lambda: not _runs(str(ready)))


def _runs(text: str) -> bool:
    found = False
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found |= text.encode() in (process / "cmdline").read_bytes()
        except OSError:
            pass
    return found
