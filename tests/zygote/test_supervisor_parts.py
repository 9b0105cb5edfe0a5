"""The parts of a supervisor by themselves: memory, descriptors, decisions, waiting."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from execserver.rules.policy import Policy
from execserver.sandbox.syscalls import Kernel
from execserver.zygote.supervision import notify
from execserver.zygote.supervision.asking import Asking
from execserver.zygote.supervision.callers import INSIDE, NOTHING, OUTSIDE, Caller, Execution, Means
from execserver.zygote.supervision.desk import STARTED_AT_ONCE, Desk
from execserver.zygote.supervision.environment import OutsideEnvironment, with_variables
from execserver.zygote.supervision.outside import Outside
from execserver.zygote.supervision.process_files import copied_descriptors
from execserver.zygote.supervision.process_memory import (
    MOST_STRINGS,
    PATH_BYTES,
    STRING_BYTES,
    TOTAL_BYTES,
    Memory,
)
from execserver.zygote.supervision.process_status import death_signal, open_process
from execserver.zygote.supervision.records import ACCEPT, Answer, FrameReader, encode_message
from execserver.zygote.supervision.watch import Watch
from tests.zygote.supervised import allow, prompt


@pytest.fixture
def memory() -> Iterator[Memory]:
    """Return this process's own memory."""
    found = Memory(os.getpid())
    yield found
    found.close()


def vector(*words: bytes) -> tuple[int, object]:
    """Return the address of an array of strings, and what keeps it alive."""
    array = (ctypes.c_char_p * (len(words) + 1))(*words)
    return ctypes.addressof(array), array


def number_of(error: pytest.ExceptionInfo[OSError]) -> str:
    return errno.errorcode[error.value.errno or 0]


def test_strings_are_read_as_they_are(memory: Memory) -> None:
    words = [b"", b"x", b"\xff\n" * 700, b"y" * (STRING_BYTES - 1), *(b"%d" % n for n in range(3000))]
    address, kept = vector(*words)
    assert memory.strings(address) == words
    assert memory.strings(0) == []
    del kept


def test_what_was_read_ahead_is_not_kept(memory: Memory) -> None:
    """A caller that is held for long, or hundreds of them, would cost many times what their strings take."""
    area = ctypes.create_string_buffer(8 * 1024 * 1024)
    count = len(area) // 128  # close enough together to be read at once
    start = ctypes.addressof(area)
    array = (ctypes.c_uint64 * (count + 1))(*range(start, start + count * 128, 128), 0)
    tracemalloc.start()
    try:
        found = memory.strings(ctypes.addressof(array))
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert found == [b""] * count
    assert held < 2 * 1024 * 1024


@pytest.mark.parametrize(
    ("word", "wanted"), [(b"x" * (PATH_BYTES - 1), None), (b"x" * PATH_BYTES, "ENAMETOOLONG")]
)
def test_paths_have_the_kernels_limit(memory: Memory, word: bytes, wanted: str | None) -> None:
    buffer = ctypes.create_string_buffer(word)
    if wanted is None:
        assert memory.path(ctypes.addressof(buffer)) == word
        return
    with pytest.raises(OSError) as error:
        memory.path(ctypes.addressof(buffer))
    assert number_of(error) == wanted


def test_arguments_have_the_kernels_limits(memory: Memory) -> None:
    address, kept = vector(b"x" * STRING_BYTES)
    with pytest.raises(OSError) as error:
        memory.strings(address)
    assert number_of(error) == "E2BIG"
    # Elsewhere: the reader remembers a piece of what a trapped thread cannot change.
    address, kept_too = vector(*[b"x" * (STRING_BYTES - 1)] * (TOTAL_BYTES // STRING_BYTES + 1))
    with pytest.raises(OSError) as error:
        memory.strings(address)
    assert number_of(error) == "E2BIG"
    del kept, kept_too


def test_many_strings_in_any_order_are_read_but_not_any_number(memory: Memory) -> None:
    words = [b"name%d" % number for number in range(50_000)]
    kept = [ctypes.create_string_buffer(word) for word in words]
    order = sorted(range(len(words)), key=lambda number: words[number][::-1])
    array = (ctypes.c_uint64 * (len(words) + 1))(*(ctypes.addressof(kept[number]) for number in order))
    assert memory.strings(ctypes.addressof(array)) == [words[number] for number in order]
    too_many = MOST_STRINGS + 5_000
    array = (ctypes.c_uint64 * (too_many + 1))(*[ctypes.addressof(kept[0])] * too_many)
    with pytest.raises(OSError) as error:
        memory.strings(ctypes.addressof(array))
    assert number_of(error) == "E2BIG"


def test_strings_around_a_hole_in_the_memory_are_read(memory: Memory) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    pages = libc.mmap(None, ctypes.c_size_t(4 * 4096), 3, 0x22, -1, ctypes.c_long(0))
    assert [libc.munmap(pages + at, 4096) for at in (4096, 3 * 4096)] == [0, 0]
    places = {b"first": pages, b"second": pages + 100, b"third": pages + 8192, b"last": pages + 3 * 4096 - 5}
    for string, place in places.items():
        ctypes.memmove(place, string + b"\0", len(string) + 1)
    order = [b"last", b"first", b"third", b"second"]
    array = (ctypes.c_uint64 * 5)(*(places[string] for string in order))
    assert memory.strings(ctypes.addressof(array)) == order
    ctypes.memset(pages + 2 * 4096, 1, 4096)
    with pytest.raises(OSError) as error:
        memory.strings(ctypes.addressof(array))
    assert number_of(error) == "EFAULT"
    for page in (pages, pages + 8192):
        assert libc.munmap(page, 4096) == 0


@pytest.mark.parametrize("address", [1, 4096, (1 << 47) - 4096, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_bad_addresses_are_faults(memory: Memory, address: int) -> None:
    for read in (memory.path, memory.strings):
        with pytest.raises(OSError) as error:
            read(address)
        assert number_of(error) == "EFAULT"


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
    copies = copied_descriptors(Kernel(), pidfd, os.getpid())
    try:
        assert open_one in copies
        assert closed_one not in copies
        assert {0, 1, 2} <= copies.keys()
    finally:
        for descriptor in (*copies.values(), open_one, closed_one, pidfd):
            os.close(descriptor)


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


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_known_machine_has_a_filter(machine: str) -> None:
    assert len(notify.program(machine)) % 8 == 0


def test_an_unknown_machine_has_none() -> None:
    kernel = Kernel()
    kernel.machine = "vax"
    with pytest.raises(OSError) as error:
        notify.install(kernel)
    assert number_of(error) == "ENOSYS"


def test_a_timer_is_done_once_and_a_dropped_descriptor_never() -> None:
    watch, done = Watch(), []
    reader, writer = os.pipe()
    second = os.dup(reader)
    os.write(writer, b"x")

    def first() -> None:
        done.append("first")
        watch.drop(reader)
        watch.drop(second)

    watch.add(reader, first)
    watch.add(second, first)
    watch.turn()
    assert done == ["first"]
    watch.after(0.001, lambda: done.append("timer"))
    watch.turn()
    watch.after(0.002, lambda: done.append("last"))
    watch.turn()
    assert done == ["first", "timer", "last"]
    for descriptor in (reader, second, writer):
        os.close(descriptor)


class Recorded(Caller):
    """A caller that notes what is done with it."""

    def __init__(self, found: int = OUTSIDE) -> None:
        self.alive_fd, self._writer = os.pipe()
        self.done: list[object] = []
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
        self.watch, self.outside = Watch(), Started()
        asking = Asking(theirs.detach(), self.watch)
        environment = OutsideEnvironment(())
        self.desk = Desk(Policy(rules), False, environment, self.outside, asking, self.watch)  # type: ignore[arg-type]

    def arrive(self, file: bytes, caller: Recorded) -> Recorded:
        """Let a caller arrive and return it."""
        self.desk.arrive(caller, Execution(file, [file], b"/"))
        return caller

    def close(self) -> None:
        """End the socket and let the desk see it."""
        self.server.close()
        self.watch.turn()


def test_programs_outside_wait_for_their_turn_in_order() -> None:
    scene = Scene(allow("a"), allow("last"))
    callers = [scene.arrive(b"/a", Recorded()) for _ in range(STARTED_AT_ONCE)]
    waiting, last = scene.arrive(b"/a", Recorded()), scene.arrive(b"/last", Recorded())
    assert len(scene.outside.files) == STARTED_AT_ONCE
    waiting.die()
    scene.watch.turn()
    assert scene.desk.ended(1_000_000_001, 7 << 8)
    assert scene.outside.files[STARTED_AT_ONCE:] == [b"/last"]
    for number in range(2, STARTED_AT_ONCE + 2):
        scene.desk.ended(1_000_000_000 + number, signal.SIGTERM)
    assert not scene.desk.ended(1_000_000_001, 0)
    assert [caller.done for caller in callers] == [[7]] + [[143]] * (STARTED_AT_ONCE - 1)
    assert (waiting.done, last.done) == (["gone"], [143])
    scene.close()


def test_who_cannot_run_outside_is_asked_to_run_inside() -> None:
    scene = Scene(prompt("a"))
    caller, nothing = scene.arrive(b"/a", Recorded(INSIDE)), scene.arrive(b"/a", Recorded(NOTHING))
    (question,) = FrameReader().feed(scene.server.recv(4096))
    scene.server.sendall(encode_message(Answer(question.number, ACCEPT)))
    scene.watch.turn()
    assert (caller.done, nothing.done, scene.outside.files) == (["run"], ["run"], [])
    scene.close()


def test_a_program_that_ends_after_its_caller_is_reaped_quietly() -> None:
    scene = Scene(allow("a"))
    caller = scene.arrive(b"/a", Recorded())
    caller.die()
    scene.watch.turn()
    assert scene.desk.ended(1_000_000_001, 0)
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
