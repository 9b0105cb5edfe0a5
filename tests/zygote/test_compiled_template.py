"""The compiled template: what it refuses to read, when Python takes over, and that nobody notices that."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from execserver.resources.rlimits import ChildLimits
from execserver.sandbox.kernel import mounts
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import READ, WRITE, Missing, SandboxPlan
from execserver.sandbox.plan_record import encode_plan
from execserver.zygote.confine import plan_cache
from execserver.zygote.confinement import NATIVE, Confinement
from execserver.zygote.records import SpawnRequest, Started
from tests.support.proc import children_of, descriptor_count, is_filter_template
from tests.support.roots import USERS, give, identity, in_child, mount, plan
from tests.support.sandbox_init import COMPILED, PYTHON, program_of
from tests.support.waiting import wait_until
from tests.support.ways import python_for, refuse_user_namespaces
from tests.zygote.confined_harness import ConfinedZygote, records_folder
from tests.zygote.harness import PATH, read_to_end
from tests.zygote.terminals import terminal

pytestmark = pytest.mark.skipif(
    in_child(lambda: int(mounts.available(Kernel())) << 8).code == 0, reason="no mount API of Linux 5.12"
)

RO = plan()


@pytest.fixture(params=USERS)
def user(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def zygote(user: int, tmp_path: Path) -> Iterator[ConfinedZygote]:
    folder = records_folder(tmp_path, user)
    with ConfinedZygote(user, folder=folder, program=program_of(COMPILED)) as started:
        yield started


@pytest.fixture
def giving_up(monkeypatch: pytest.MonkeyPatch, user: int, tmp_path: Path) -> Iterator[ConfinedZygote]:
    """Return a zygote whose recorded roots name an entry of /proc that is gone: only the slow path copes."""
    monkeypatch.setattr(plan_cache, "settings_of_host", lambda: [b"no-such-entry"])
    folder = records_folder(tmp_path, user)
    with ConfinedZygote(user, folder=folder, program=program_of(COMPILED)) as started:
        yield started


def shown_until(master: int, end: bytes) -> bytes:
    """Return what a terminal shows, up to some last bytes; it comes in pieces."""
    shown = b""
    while not shown.endswith(end):
        shown += os.read(master, 10000)
    return shown


def programs_of(zygote: ConfinedZygote) -> list[str]:
    """Return the names of the programs that a zygote's filter templates are."""
    pids = [pid for pid in children_of(zygote.pid) if is_filter_template(pid)]
    return sorted(os.path.basename(os.readlink(f"/proc/{pid}/exe")) for pid in pids)


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may not look")
def test_it_is_the_compiled_program_and_python_is_not_started(zygote: ConfinedZygote) -> None:
    assert zygote.sh("echo here", plan=RO) == (0, "here\n", "")
    assert programs_of(zygote) == ["sandbox-init"]


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may not look")
def test_where_it_gives_up_python_is_started_as_well(giving_up: ConfinedZygote) -> None:
    assert giving_up.sh("echo here", plan=RO) == (0, "here\n", "")
    assert len(programs_of(giving_up)) == 2


@pytest.mark.parametrize("program", [b"/nonesuch", b"/etc/passwd", b"/bin/true"])
def test_a_program_that_is_none_leaves_it_to_python(program: bytes, user: int) -> None:
    with ConfinedZygote(user, program=program) as zygote:
        for _ in range(2):
            assert zygote.sh("echo here", plan=RO) == (0, "here\n", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root does without user namespaces")
@pytest.mark.parametrize("how", ["filter", "limit"])
def test_where_user_namespaces_are_refused_it_ends(how: str) -> None:
    program = program_of(COMPILED)

    def act() -> int:
        refuse_user_namespaces(how)
        with ConfinedZygote(program=program) as zygote:
            for _ in range(2):
                assert zygote.run_on_terminal(b"/bin/echo", b"here", plan=RO) == (0, b"here\r\n")
            # The one in Python, which serves root without: of two there would be one to no purpose.
            wait_until(lambda: len(list(filter(is_filter_template, children_of(zygote.pid)))) == 1)
        return 0

    outcome = in_child(act)
    assert (outcome.status, outcome.err) == (0, "")


# A start that is given up.


def test_a_start_that_is_given_up_has_its_stdio(giving_up: ConfinedZygote) -> None:
    assert giving_up.sh("cat; echo err >&2; exit 7", plan=RO, stdin=b"word") == (7, "word", "err\n")
    assert giving_up.sh("wc -c", plan=RO) == (0, "0\n", "")


def test_a_start_that_is_given_up_has_its_terminal(giving_up: ConfinedZygote) -> None:
    with terminal() as (master, slave):
        script = b"tty; cut -d' ' -f 5-8 /proc/$$/stat; echo x > /dev/tty; ls /dev/console"
        started = giving_up.ask(b"/bin/sh", b"-c", script, plan=RO, slave=slave)
        assert isinstance(started, Started)
        assert giving_up.exit_of(started.request_id).status == 0
        lines = shown_until(master, b"/dev/console\r\n").decode().split("\r\n")
    assert lines[1].split()[:2] == ["1", "1"]
    assert lines[2:] == ["x", "/dev/console", ""]


def test_a_start_that_is_given_up_keeps_its_mask_targets(
    giving_up: ConfinedZygote, tmp_path: Path, user: int
) -> None:
    ws = tmp_path / "ws"
    ws.mkdir()
    give(ws, user)
    missing = (Missing(os.fsencode(ws / ".git"), identity(ws), True, True),)
    view = SandboxPlan("read-only", (mount(WRITE, ws),), missing)
    for _ in range(2):
        code, out, _ = giving_up.sh("ls -A; mkdir .git; echo $?", plan=view, cwd=os.fsencode(ws))
        assert (code, out.split()) == (0, [".git", "1"])
        assert list(ws.iterdir()) == []


def test_a_start_that_is_given_up_can_be_signalled(giving_up: ConfinedZygote) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    started = giving_up.ask(b"/bin/sleep", b"1000", plan=RO, descriptors=[null, null])
    os.close(null)
    assert isinstance(started, Started)
    assert giving_up.signal(started.request_id, signal.SIGTERM).delivered
    assert giving_up.exit_of(started.request_id).status == signal.SIGTERM


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may not look")
def test_nothing_stays_open_or_behind_in_the_zygote(giving_up: ConfinedZygote, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    unmade = plan(mount(READ, gone))
    gone.rmdir()

    def play() -> tuple[int, int]:
        assert giving_up.sh("echo here", plan=RO) == (0, "here\n", "")
        assert "No such file" in giving_up.root_refusal(unmade)
        with terminal() as (_, slave):
            started = giving_up.ask(b"/bin/true", plan=RO, slave=slave)
            assert isinstance(started, Started)
            giving_up.exit_of(started.request_id)
        wait_until(lambda: all(Path(f"/proc/{pid}/cwd").exists() for pid in children_of(giving_up.pid)))
        return descriptor_count(giving_up.pid), len(children_of(giving_up.pid))

    play()
    before = [play() for _ in range(3)]
    # Not equal: a spare that has waited too long ends at any time, and the next start has another made.
    assert min(play() for _ in range(3)) <= max(before)


# The same with both.

SCRIPTS = {
    "killed": b"ulimit -c 0; kill -9 $$",
    "orphans": b"(sleep 0.01 &) ; (true &); wait; exit 5",
    "inside": b"umask; pwd; ls /proc/self/fd; ulimit -a; cat /proc/1/comm; readlink /proc/1/exe; echo $?",
    "status": b"grep -E '^(Cap|NoNew|Sig|Shd|Seccomp|Groups|NSpid|Threads)' /proc/self/status",
    "first": b"grep -E '^(Cap|NoNew|Sec|Gro|PPid|NSpid)' /proc/1/status; stat -c '%A %u' /proc/1/environ",
    "limits": b"for f in /proc/sys/user/max_*_namespaces; do cat $f; done",
    "writes": b"echo x > /etc/x; echo x > /dev/x; echo x > /proc/sys/x; echo x > /dev/stderr",
    "shared memory": b"echo x > /dev/shm/x; cat /dev/shm/x",
    "mounts": b"grep -v ' /run/netns' /proc/self/mountinfo | cut -d' ' -f4- | sed 's/ [a-z]*:[0-9]*//g'",
}
PROGRAMS = {
    "missing": [b"nonesuch"],
    "folder": [b"/etc"],
    "no program": [b"/etc/passwd"],
    "nameless": [b""],
    "too long": [b"x" * 300],
    "below a file": [b"/etc/passwd/x"],
    "relative": [b"./sh", b"-c", b"echo $0"],
}


def outcomes(user: int, folder: Path, play: Callable[[ConfinedZygote], object]) -> tuple[object, object]:
    """Return what comes of something with Python and with the compiled init, both in a warm zygote."""
    found = []
    for maker in (PYTHON, COMPILED):
        with ConfinedZygote(user, folder=os.fsencode(folder), program=program_of(maker)) as zygote:
            zygote.sh("true", plan=RO)
            found.append(play(zygote))
    return found[0], found[1]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_the_same_outcome_with_both(name: str, user: int, tmp_path: Path) -> None:
    def play(zygote: ConfinedZygote) -> object:
        env = [b"HOME=/root", b"PWD=/elsewhere", PATH]
        return zygote.run(b"/bin/sh", b"-c", SCRIPTS[name], plan=RO, env=env)

    by_python, by_compiled = outcomes(user, tmp_path, play)
    assert by_compiled == by_python


# What no file of /proc tells: securebits, death signal, name, timer slack, nice value, processors, signals.
INHERITED = """
import ctypes, json, os, resource, signal
libc = ctypes.CDLL(None)
status = open("/proc/self/status").read().splitlines()
told = [line for line in status if not line.startswith(("Vm", "Rss", "Hugetlb", "voluntary", "nonvoluntary"))]
death = ctypes.c_int(77)
libc.prctl(2, ctypes.byref(death))
print(json.dumps({
    "status": told,
    "prctl": {number: libc.prctl(number, 0, 0, 0, 0) for number in (7, 21, 27, 30, 34, 39, 42)},
    "ambient": [libc.prctl(47, 1, number, 0, 0) for number in range(41)],
    "death": death.value,
    "limits": [resource.getrlimit(number) for number in range(16)],
    "ids": [os.getresuid(), os.getresgid(), os.getgroups(), os.getsid(0), os.getpgrp(), os.getppid()],
    "schedule": [os.nice(0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))],
    "personality": libc.personality(0xFFFFFFFF),
    "signals": [int(signal.getsignal(n) or 0) for n in range(1, 65) if n not in (2, 13, 25)],
    "masked": [sorted(signal.pthread_sigmask(0, [])), sorted(signal.sigpending())],
    "files": [open("/proc/self/" + name).read() for name in ("oom_score_adj", "coredump_filter", "uid_map")],
    "open": sorted(os.listdir("/proc/self/fd"))[:3],
    "umask": os.umask(0),
}))
"""


def test_a_command_inherits_the_same_from_both(user: int, tmp_path: Path) -> None:
    words = [os.fsencode(word) for word in (python_for(user), "-I", "-S", "-c", INHERITED)]

    def play(zygote: ConfinedZygote) -> object:
        status, out, err = zygote.run(*words, plan=RO)
        assert (status, err) == (0, b"")
        return json.loads(out)

    by_python, by_compiled = outcomes(user, tmp_path, play)
    assert by_compiled == by_python
    # The locked securebits, and no new privileges.
    assert isinstance(by_compiled, dict)
    assert [by_compiled["prctl"][number] for number in ("27", "39")] == [0xEF, 1]


def test_limits_are_the_same_with_both(user: int, tmp_path: Path) -> None:
    limits = ChildLimits(cpu_s=50, file_bytes=10240, open_files=90)
    script = b"ulimit -Ha; ulimit -Sa"

    def play(zygote: ConfinedZygote) -> object:
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        request = SpawnRequest(
            *(4711, [b"/bin/sh", b"-c", script], [PATH], b"/"),
            confinement=Confinement(NATIVE, encode_plan(RO)),
            limits=limits,
        )
        zygote.send(request, [theirs, theirs])
        os.close(theirs)
        assert isinstance(zygote.answer(4711), Started)
        return read_to_end(ours)

    by_python, by_compiled = outcomes(user, tmp_path, play)
    assert by_compiled == by_python
    assert b"90" in read_numbers(by_compiled)


def read_numbers(shown: object) -> list[bytes]:
    assert isinstance(shown, bytes)
    return [line.split()[-1] for line in shown.splitlines()]


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may not look")
def test_more_plans_than_it_keeps_are_told_apart(zygote: ConfinedZygote, tmp_path: Path, user: int) -> None:
    folders = [tmp_path / f"ws{number}" for number in range(18)]
    for folder in folders:
        folder.mkdir()
        give(folder, user)
    for mine in [*folders, *folders[:2]]:
        script = "; ".join(f"echo x > {folder}/x && echo {folder.name}" for folder in folders)
        assert zygote.sh(script, plan=plan(mount(WRITE, mine)))[1] == f"{mine.name}\n"
    assert programs_of(zygote) == ["sandbox-init"]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("path", [PATH, b"PATH=", b"PATH=/etc:/nonesuch:/etc/passwd:", b"OTHER=x"])
def test_a_program_has_the_same_outcome_with_both(name: str, path: bytes, user: int, tmp_path: Path) -> None:
    def play(zygote: ConfinedZygote) -> object:
        return zygote.run(*PROGRAMS[name], plan=RO, env=[path], cwd=b"/bin")

    by_python, by_compiled = outcomes(user, tmp_path, play)
    assert by_compiled == by_python


def test_a_terminal_is_the_same_with_both(user: int, tmp_path: Path) -> None:
    # Not where the links of /proc lead: the mount that Python's init has opened it on is gone.
    script = b"cut -d' ' -f 5-6 /proc/$$/stat; echo x > /dev/tty; ls /proc/self/fd; tty; stty -a"
    script += b"; for n in 0 1 2; do stat -L -c '%F %a %t' /proc/self/fd/$n; done; ls /dev /dev/pts"
    script += b"; stat -c '%F %a' /dev/console; (exec 3<>/proc/self/fd/0) && echo opened; echo end"

    def play(zygote: ConfinedZygote) -> object:
        with terminal() as (master, slave):
            started = zygote.ask(b"/bin/sh", b"-c", script, plan=RO, slave=slave)
            assert isinstance(started, Started)
            status = zygote.exit_of(started.request_id).status
            lines = shown_until(master, b"\nend\r\n").replace(slave, b"SLAVE").splitlines()
            return status, lines

    by_python, by_compiled = outcomes(user, tmp_path, play)
    assert by_compiled == by_python
