"""Where file operations run, and that content is never held as a whole."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator

import gevent
import pybase64
import pytest

from execserver.core.file_handles import OpenFile
from execserver.files import copy, metadata, opening, reading, remove, walk, writing
from execserver.protocol.files import FsOpenMode
from execserver.services.files.filesystem import FileService
from execserver.services.mounts import MountTable
from execserver.settings import Settings
from tests.files.tools import PeakMemory, get, open_descriptors, put
from tests.support.waiting import wait_until

MIB = 1024 * 1024
READ, REPLACE = FsOpenMode.READ, FsOpenMode.REPLACE


class Mounts(MountTable):
    """A mount table that says what the test wants."""

    def __init__(self, local: bool) -> None:
        super().__init__(b"/missing")
        self.local = local

    def is_local(self, path: bytes) -> bool:
        return self.local

    def all_local(self) -> bool:
        return self.local

    def is_local_device(self, device: int) -> bool:
        return self.local


@pytest.fixture
def folder(tmp_path: os.PathLike[str]) -> bytes:
    return os.fsencode(tmp_path)


@pytest.fixture
def local() -> FileService:
    """A service that takes every path for local."""
    return FileService(Settings(), Mounts(True))


@pytest.fixture
def slow() -> FileService:
    """A service that takes every path for slow."""
    return FileService(Settings(file_call_timeout_s=2.0), Mounts(False))


@pytest.fixture(params=["local", "slow"])
def service(request: pytest.FixtureRequest, local: FileService, slow: FileService) -> FileService:
    return local if request.param == "local" else slow


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[object, str], set[bool]]:
    """Watch a function: the set tells whether it ran on the test's own thread."""
    here = threading.get_ident()

    def watch(module: object, name: str) -> set[bool]:
        seen: set[bool] = set()
        real = getattr(module, name)

        def watched(*arguments: object, **named: object) -> object:
            seen.add(threading.get_ident() == here)
            return real(*arguments, **named)

        monkeypatch.setattr(module, name, watched)
        return seen

    return watch


Watch = Callable[[object, str], set[bool]]


def content_of(answer: tuple[bytes, Iterator[bytes] | None]) -> bytes:
    first, rest = answer
    return pybase64.b64decode(first + b"".join(rest or ()), validate=True)


def test_every_operation_works_wherever_it_runs(service: FileService, folder: bytes) -> None:
    folder = os.path.realpath(folder)
    service.create_directory(folder + b"/a/b", recursive=True)
    service.write_file(folder + b"/a/f", b"hello")
    assert service.get_metadata(folder + b"/a/f")[:4] == (False, True, False, 5)
    assert service.canonicalize(folder + b"/a/f") == folder + b"/a/f"
    assert sorted(service.read_directory(folder + b"/a")) == [("b", True, False), ("f", False, True)]
    service.copy(folder + b"/a", folder + b"/c", recursive=True)
    assert content_of(service.read_file(folder + b"/c/f", limit=MIB)) == b"hello"
    found = service.walk(folder + b"/c", walk.WalkOptions(9, 9, 9, False, False))
    assert [is_directory for _, is_directory in found.entries] == [True, False]
    service.remove(folder + b"/a", recursive=True, force=False)
    assert service.read_directory(folder) == [("c", True, False)]


def test_errors_are_the_same_wherever_it_runs(service: FileService, folder: bytes) -> None:
    missing = folder + b"/missing"
    for call in (
        lambda: service.get_metadata(missing),
        lambda: service.canonicalize(missing),
        lambda: service.create_directory(missing + b"/x", recursive=False),
        lambda: service.read_directory(missing),
        lambda: service.remove(missing, recursive=True, force=False),
        lambda: service.copy(missing, folder + b"/x", recursive=True),
        lambda: service.walk(missing, walk.WalkOptions(9, 9, 9, False, False)),
        lambda: service.read_file(missing, limit=MIB),
        lambda: service.write_file(missing + b"/x", b""),
        lambda: service.open(missing, READ),
    ):
        with pytest.raises(FileNotFoundError):
            call()


def test_short_calls_on_local_file_systems_use_no_thread(
    local: FileService, folder: bytes, threads: Watch
) -> None:
    path = put(folder + b"/f", b"x")
    seen = [
        threads(metadata, "get_metadata"),
        threads(metadata, "canonicalize"),
        threads(metadata, "read_directory"),
        threads(remove, "remove"),
        threads(copy, "copy"),
        threads(writing, "write_file"),
        threads(opening, "open_regular"),
    ]
    local.get_metadata(path)
    local.canonicalize(path)
    local.read_directory(folder)
    local.copy(path, folder + b"/g", recursive=True)
    local.write_file(path, b"x" * 262_144)
    os.close(local.open(path, READ).fd)
    local.remove(path, recursive=True, force=True)
    assert seen == [{True}] * len(seen)


def test_long_calls_on_local_file_systems_leave_the_loop_free(
    local: FileService, folder: bytes, threads: Watch
) -> None:
    path = put(folder + b"/f", b"x" * 262_145)
    os.makedirs(folder + b"/d/e")
    seen = [threads(remove, "remove"), threads(copy, "copy"), threads(writing, "write_file")]
    local.copy(path, folder + b"/g", recursive=False)
    local.copy(folder + b"/d", folder + b"/h", recursive=True)
    local.write_file(path, b"x" * 300_000)
    local.write_file(b"/dev/null", b"x")
    local.remove(folder + b"/d", recursive=True, force=True)
    assert seen == [{False}] * len(seen)


def test_every_call_on_a_slow_file_system_runs_in_a_thread(
    slow: FileService, folder: bytes, threads: Watch
) -> None:
    path = put(folder + b"/f", b"x")
    seen = [
        threads(metadata, "get_metadata"),
        threads(reading, "read_fully"),
        threads(reading, "read_block"),
        threads(writing, "write_block"),
        threads(remove, "remove"),
    ]
    slow.get_metadata(path)
    content_of(slow.read_file(path, limit=MIB))
    file = slow.open(path, READ)
    assert slow.read_block(file, 0, 10) == b"x"
    slow.release(file.fd)
    file = slow.open(path, REPLACE)
    slow.write_block(file, 1, b"yz")
    slow.release(file.fd)
    assert get(path) == b"\0yz"
    slow.remove(path, recursive=False, force=False)
    assert seen == [{False}] * len(seen)


@pytest.mark.parametrize("length", [0, 5, 196_608, 196_609, 3 * 196_608 + 1])
def test_content_comes_as_base64_in_pieces(service: FileService, folder: bytes, length: int) -> None:
    content = os.urandom(length)
    path = put(folder + b"/f", content)
    first, rest = service.read_file(path, limit=MIB)
    assert (rest is None) == (length <= 196_608)
    pieces = [first, *(rest or ())]
    assert pybase64.b64decode(b"".join(pieces), validate=True) == content
    assert max(map(len, pieces)) <= 262_144


def test_reading_64_mib_takes_little_memory(service: FileService, folder: bytes) -> None:
    path = put(folder + b"/big")
    os.truncate(path, 64 * MIB)
    memory = PeakMemory()
    first, rest = service.read_file(path, limit=64 * MIB)
    assert rest is not None
    length = len(first) + sum(map(len, rest))
    assert length == -(-64 * MIB // 3) * 4
    assert memory.growth() < 8 * MIB


def test_content_nobody_takes_leaves_no_descriptor(service: FileService, folder: bytes) -> None:
    path = put(folder + b"/f", b"x" * MIB)
    service.read_file(path, limit=MIB)  # so that threads and their descriptors are there
    gc.collect()
    before = open_descriptors()
    answer = service.read_file(path, limit=MIB)
    assert open_descriptors() != before
    del answer
    gc.collect()
    wait_until(lambda: open_descriptors() == before, pause=gevent.sleep)


def test_a_file_above_the_limit_is_refused_before_anything_is_returned(
    service: FileService, folder: bytes
) -> None:
    path = put(folder + b"/f", b"x" * 11)
    with pytest.raises(reading.FileTooLarge, match="limit is 10 bytes"):
        service.read_file(path, limit=10)


def test_a_handle_closed_while_its_thread_hangs_costs_no_other_file(
    slow: FileService, folder: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = slow.open(put(folder + b"/f", b"old"), REPLACE)
    entered, go_on, wrote = threading.Event(), threading.Event(), threading.Event()
    real = writing.write_block

    def hang(fd: int, offset: int, data: bytes) -> None:
        entered.set()
        go_on.wait(30)
        real(fd, offset, data)
        wrote.set()

    monkeypatch.setattr(writing, "write_block", hang)
    caller = gevent.spawn(slow.write_block, file, 0, b"new")
    wait_until(entered.is_set, pause=gevent.sleep)
    os.close(file.fd)  # as when the connection ends
    other = os.open(put(folder + b"/other", b"kept"), os.O_RDWR)
    assert other == file.fd
    go_on.set()
    wait_until(wrote.is_set, pause=gevent.sleep)
    caller.get(timeout=20)
    os.close(other)
    assert get(folder + b"/other") == b"kept"
    assert get(folder + b"/f") == b"new"


def test_a_file_opened_too_late_is_closed(folder: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    service = FileService(Settings(file_call_timeout_s=0.05), Mounts(False))
    path = put(folder + b"/f", b"x")
    go_on = threading.Event()
    opened: list[int] = []
    real = opening.open_regular

    def hang(path: bytes) -> int:
        go_on.wait(30)
        opened.append(real(path))
        return opened[0]

    monkeypatch.setattr(opening, "open_regular", hang)
    with pytest.raises(OSError, match="timed out"):
        service.open(path, READ)
    go_on.set()
    wait_until(lambda: opened and not os.path.exists(f"/proc/self/fd/{opened[0]}"), pause=gevent.sleep)


def test_files_of_local_devices_are_read_without_threads_after_a_doubtful_opening(folder: bytes) -> None:
    mounts = Mounts(False)
    mounts.is_local_device = lambda device: device == os.stat(folder).st_dev  # type: ignore[method-assign]
    service = FileService(Settings(), mounts)
    file = service.open(put(folder + b"/f", b"x"), READ)
    assert file.local
    service.release(file.fd)


def test_a_released_descriptor_is_closed(service: FileService, folder: bytes) -> None:
    file = service.open(put(folder + b"/f", b"x"), READ)
    link = f"/proc/self/fd/{file.fd}"
    service.release(file.fd)
    wait_until(lambda: not os.path.exists(link), pause=gevent.sleep)


def test_a_block_of_an_open_file_needs_no_path(local: FileService, folder: bytes) -> None:
    path = put(folder + b"/f", b"hello")
    file = local.open(path, READ)
    os.unlink(path)
    assert isinstance(file, OpenFile)
    assert local.read_block(file, 1, 3) == b"ell"
    local.release(file.fd)


def test_others_run_while_much_is_listed(
    local: FileService, folder: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "_BATCH", 2)
    for number in range(6):
        put(folder + b"/%d" % number)
    turns: list[str] = []

    def take_turns() -> None:
        for _ in range(3):
            turns.append("other")
            gevent.sleep(0)

    other = gevent.spawn(take_turns)
    local.read_directory(folder)
    turns.append("listed")
    other.join()
    assert turns.index("listed") == 3


def test_the_real_mount_table_is_used_and_closed(folder: bytes) -> None:
    service = FileService(Settings())
    assert service.get_metadata(folder)[0]
    service.close()
    assert service.get_metadata(folder)[0]
