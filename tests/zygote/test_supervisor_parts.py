"""The parts of a supervisor by themselves: descriptors, decisions, waiting."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from execserver.rules.policy import Policy
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.zygote.supervision.asking import Asking
from execserver.zygote.supervision.environment import OutsideEnvironment, with_variables
from execserver.zygote.supervision.event_loop import EventLoop
from execserver.zygote.supervision.exec_broker import STARTED_AT_ONCE, ExecBroker
from execserver.zygote.supervision.outside import Outside
from execserver.zygote.supervision.records import ACCEPT, Answer, FrameReader, Question, encode_message
from execserver.zygote.supervision.trap import notify
from execserver.zygote.supervision.trap.callers import INSIDE, NOTHING, OUTSIDE, Caller, Execution, Means
from execserver.zygote.supervision.trap.process_files import (
    copied_descriptors,
    free_number,
    inherited_descriptors,
    open_numbers,
)
from execserver.zygote.supervision.trap.process_status import Status, death_signal, open_process
from tests.zygote.supervised import allow, prompt


def number_of(error: pytest.ExceptionInfo[OSError]) -> str:
    return errno.errorcode[error.value.errno or 0]


def test_the_environment_outside_takes_the_loaders_variables_from_the_server() -> None:
    server = [b"PATH=/server", b"LD_LIBRARY_PATH=/opt/lib", b"HOME=/root"]
    inside = [
        *(b"B=1", b"LD_PRELOAD=/evil", b"LD_LIBRARY_PATH=/evil", b"A=", b"odd", b"LD_RUN_PATH=/kept"),
        *(b"CODEX_ESCALATE_SOCKET=4", b"EXEC_WRAPPER=/w", b"PATH=/inside"),
    ]
    environment = OutsideEnvironment(server)
    for _ in range(2):
        assert environment.of(list(inside)) == [
            *(b"B=1", b"A=", b"odd", b"LD_RUN_PATH=/kept", b"PATH=/inside", b"LD_LIBRARY_PATH=/opt/lib"),
        ]
    assert environment.of([b"LD_PRELOAD=/evil", b"C=3"]) == [b"C=3", b"LD_LIBRARY_PATH=/opt/lib"]
    assert environment.of([]) == [b"LD_LIBRARY_PATH=/opt/lib"]
    assert with_variables([b"A=1", b"B=2", b"A=3"], [b"A=4"]) == [b"B=2", b"A=4"]


@pytest.mark.parametrize(
    ("entry", "is_kept"),
    [
        (b"LANGUAGE=de:en_GB", True),
        (b"LANGUAGE=../../../tmp/evil", False),
        (b"LANGUAGE=de:/tmp/evil", False),
        (b"TZ=", True),
        (b"TZ=Europe/Berlin", True),
        (b"TZ=:Europe/Berlin", True),
        (b"TZ=CET-1CEST,M3.5.0,M10.5.0/3", True),
        (b"TZ=:/etc/localtime", True),
        (b"TZ=/usr/share/zoneinfo/Europe/Berlin", True),
        (b"TZ=/usr/share/zoneinfo/../../../tmp/evil", False),
        (b"TZ=:/tmp/fifo", False),
        (b"TZ=/tmp/fifo", False),
        (b"TZ=:../../../tmp/evil", False),
        (b"LANGUAGES=/tmp", True),
        (b"TZ2=/tmp", True),
    ],
)
def test_languages_and_zones_lead_to_the_systems_files_only(entry: bytes, is_kept: bool) -> None:
    found = OutsideEnvironment(()).of((b"A=1", entry, entry))
    assert found == [b"A=1", *([entry] * 2 if is_kept else [])]


def test_a_descriptor_whose_number_another_must_get_is_moved_away() -> None:
    def act() -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        first, second = (os.memfd_create(name) for name in ("first", "second"))
        os.write(first, b"1")
        os.write(second, b"2")
        means = Means([], {first: second, second: first, 0: os.dup(0)}, os.open("/", os.O_RDONLY))
        script = f"read -N1 a < /dev/fd/{first}; read -N1 b < /dev/fd/{second}; [ $a$b = 21 ]"
        pid = Outside().start(b"/bin/bash", [b"bash", b"-c", script.encode()], means)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert in_fork(act) == 0


def test_each_program_gets_its_own_descriptors_and_variables() -> None:
    def act() -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        outside, here, env = Outside(), os.open("/", os.O_RDONLY), [b"A=1"]
        first, second = (os.memfd_create(name) for name in ("first", "second"))
        statuses = []
        for variables, descriptors, wanted in (
            (env, {60: first}, "1,60"),
            (env, {60: first}, "1,60"),
            (env, {61: second, 60: first}, "1,60,61"),
            ([b"A=2"], {61: second}, "2,61"),
        ):
            given = {number: os.dup(descriptor) for number, descriptor in descriptors.items()}
            script = f'x=$A; for n in 60 61; do [ -e /dev/fd/$n ] && x=$x,$n; done; [ "$x" = {wanted} ]'
            means = Means(variables, {0: os.dup(here), **given}, os.dup(here))
            pid = outside.start(b"/bin/bash", [b"bash", b"-c", script.encode()], means)
            means.close()
            statuses.append(os.waitpid(pid, 0)[1])
        return sum(bool(status) << at for at, status in enumerate(statuses))

    assert in_fork(act) == 0


def test_what_cannot_be_executed_is_an_error_with_its_number() -> None:
    def act() -> int:
        means = Means([], {}, os.open("/", os.O_RDONLY))
        try:
            Outside().start(b"/etc/passwd", [b"x"], means)
        except OSError as error:
            return error.errno or 0
        return 0

    assert in_fork(act) == errno.EACCES


def test_only_what_a_program_would_inherit_is_copied() -> None:
    open_one, closed_one = os.open("/dev/null", os.O_RDONLY), os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(open_one, True)
    pidfd = open_process(os.getpid())
    numbers = open_numbers(os.getpid())
    assert {0, 1, 2, open_one, closed_one, pidfd} <= set(numbers)
    assert free_number(numbers) not in numbers
    copies = copied_descriptors(Kernel(), pidfd, os.getpid(), numbers)
    try:
        assert open_one in copies
        assert closed_one not in copies
        assert {0, 1, 2} <= copies.keys()
    finally:
        for descriptor in (*copies.values(), open_one, closed_one, pidfd):
            os.close(descriptor)


@pytest.mark.parametrize("numbers", [(), (0, 1, 2), (0, 1, 7), (0, 1, 2, 3), (0, 1, 2, 3, 5), (1, 2, 4, 200)])
def test_all_that_a_program_would_inherit_is_copied(numbers: tuple[int, ...]) -> None:
    pid = os.fork()
    if not pid:
        stop_with(numbers)
    try:
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        pidfd = open_process(pid)
        copies, free = inherited_descriptors(Kernel(), pidfd, pid)
        for descriptor in (pidfd, *copies.values()):
            os.close(descriptor)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert set(copies) == set(numbers)
    assert free not in {*numbers, 0, 1, 2}


def stop_with(numbers: Collection[int]) -> None:
    """Be a process that has these descriptors and no others, and is stopped; never returns."""
    try:
        null = os.open("/dev/null", os.O_RDWR)
        for number in numbers:
            os.dup2(null, number)
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in numbers:
                os.closerange(int(name), int(name) + 1)
        os.kill(os.getpid(), signal.SIGSTOP)
    finally:
        os._exit(1)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, 0])
def test_what_killed_a_process_is_known(signum: int) -> None:
    pid = os.fork()
    if pid == 0:
        if signum:
            os.kill(os.getpid(), signum)
        os._exit(3)
    pidfd = open_process(pid)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert death_signal(pidfd, pid) == signum
    os.waitpid(pid, 0)
    os.close(pidfd)


def test_the_status_of_a_process_that_has_ended_is_an_error_with_its_number() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # a zombie, of which the kernel tells a part only
    try:
        with pytest.raises(OSError) as error:
            Status(pid)
    finally:
        os.waitpid(pid, 0)
    assert number_of(error) == "ESRCH"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_known_machine_has_a_filter(machine: str) -> None:
    assert len(notify.program(machine)) % 8 == 0


def test_an_unknown_machine_has_none() -> None:
    kernel = Kernel()
    kernel.machine = "vax"
    with pytest.raises(OSError) as error:
        notify.install(kernel)
    assert number_of(error) == "ENOSYS"


class Recorded(Caller):
    """A caller that notes what is done with it."""

    def __init__(self, found: int = OUTSIDE) -> None:
        self.alive_fd, self._writer = os.pipe()
        self.done: list[object] = []
        self.has_given = False
        self._found = found

    def look(self, file: bytes) -> int:
        return self._found

    def run(self) -> None:
        self._end("run")

    def deny(self, text: str) -> None:
        self._end(text)

    def exit(self, code: int) -> None:
        self._end(code)

    def fail(self, number: int) -> None:
        self._end(OSError(number))

    def collect(self, then: Callable[[Means | None], None]) -> None:
        self.has_given = True
        then(Means([], {}, os.dup(self.alive_fd)))

    def gone(self) -> int:
        self._end("gone")
        return signal.SIGINT

    def die(self) -> None:
        """Be gone."""
        os.write(self._writer, b"x")

    def _end(self, how: object) -> None:
        self.done.append(how)
        os.close(self.alive_fd)
        os.close(self._writer)


class Started(Outside):
    """Starts nothing, and counts."""

    def __init__(self) -> None:
        self.files: list[bytes] = []

    def start(self, file: bytes, argv: object, means: Means) -> int:
        self.files.append(file)
        return 1_000_000_000 + len(self.files)


class Scene:
    """A desk with a socket for its questions."""

    def __init__(self, *rules: object) -> None:
        import socket

        self.server, theirs = socket.socketpair()
        self.loop, self.outside = EventLoop(), Started()
        asking = Asking(theirs.detach(), self.loop)
        environment = OutsideEnvironment(())
        self.broker = ExecBroker(Policy(rules), False, environment, self.outside, asking, self.loop)  # type: ignore[arg-type]

    def arrive(self, file: bytes, caller: Recorded) -> Recorded:
        """Let a caller arrive and return it."""
        self.broker.arrive(caller, Execution(file, [file], b"/"))
        return caller

    def close(self) -> None:
        """End the socket and let the desk see it."""
        self.server.close()
        self.loop.turn()


def test_programs_outside_wait_for_their_turn_in_order() -> None:
    scene = Scene(allow("a"), allow("last"))
    callers = [scene.arrive(b"/a", Recorded()) for _ in range(STARTED_AT_ONCE)]
    waiting, last = scene.arrive(b"/a", Recorded()), scene.arrive(b"/last", Recorded())
    assert len(scene.outside.files) == STARTED_AT_ONCE
    waiting.die()
    scene.loop.turn()
    assert scene.broker.ended(1_000_000_001, 7 << 8)
    assert scene.outside.files[STARTED_AT_ONCE:] == [b"/last"]
    for number in range(2, STARTED_AT_ONCE + 2):
        scene.broker.ended(1_000_000_000 + number, signal.SIGTERM)
    assert not scene.broker.ended(1_000_000_001, 0)
    assert [caller.done for caller in callers] == [[7]] + [[143]] * (STARTED_AT_ONCE - 1)
    assert (waiting.done, last.done) == (["gone"], [143])
    scene.close()


def test_who_cannot_run_outside_is_asked_to_run_inside() -> None:
    scene = Scene(prompt("a"))
    caller, nothing = scene.arrive(b"/a", Recorded(INSIDE)), scene.arrive(b"/a", Recorded(NOTHING))
    (question,) = FrameReader().feed(scene.server.recv(4096))
    assert isinstance(question, Question)
    scene.server.sendall(encode_message(Answer(question.number, ACCEPT)))
    scene.loop.turn()
    assert (caller.done, nothing.done, scene.outside.files) == (["run"], ["run"], [])
    scene.close()


def test_who_waits_with_a_program_that_has_changed_keeps_its_means(tmp_path: Path) -> None:
    """A wrapper that has given its descriptors away could not run it inside any more."""
    scene = Scene(prompt("tool"))
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    caller = scene.arrive(os.fsencode(tool), Recorded())
    (question,) = FrameReader().feed(scene.server.recv(4096))
    assert isinstance(question, Question)
    tool.write_text("#!/bin/sh\necho something else\n")
    scene.server.sendall(encode_message(Answer(question.number, ACCEPT)))
    scene.loop.turn()
    assert (caller.done, caller.has_given, scene.outside.files) == (["run"], False, [])
    scene.close()


def test_a_program_that_ends_after_its_caller_is_reaped_quietly() -> None:
    scene = Scene(allow("a"))
    caller = scene.arrive(b"/a", Recorded())
    caller.die()
    scene.loop.turn()
    assert scene.broker.ended(1_000_000_001, 0)
    assert caller.done == ["gone"]
    scene.close()


def in_fork(act: Callable[[], int]) -> int:
    """Return what a function returns in a forked child, as an exit status."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            status = act()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
