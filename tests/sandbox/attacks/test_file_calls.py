"""fs/* requests: races, `..`, special files, huge and malformed input, mixed and stale policies."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import LONG
from tests.e2e.sandbox_places import Place
from tests.e2e.sandboxed_calls import Files
from tests.support.peer import Json, RemoteError
from tests.support.sandboxes import context, managed, read_only, rule, workspace_write

ROUNDS = 200 if LONG else 10  # on each of five ways; what is copied grows with the square of it
EXCHANGE = 2
SECRET = b"what lies outside"


def narrow(place: Place) -> Json:
    """A policy that grants the workspace only."""
    return context(managed(rule(place.ws, "write")), place.ws)


def outside_is_as_it_was(place: Place) -> bool:
    return sorted(os.listdir(place.other)) == ["f"] and (place.other / "f").read_bytes() == SECRET


@pytest.fixture
def files(place: Place) -> Files:
    """Files under the workspace preset, with a secret beside the workspace."""
    (place.other / "f").write_bytes(SECRET)
    return Files(place, workspace_write(place.ws))


@contextmanager
def swapping(place: Place) -> Iterator[None]:
    """Exchange `ws/place`, a folder with a file, and `ws/lure`, a link to outside, all the time."""
    import ctypes

    place.make("ws/place/f", "mine")
    place.make("ws/place/d/g", "mine")
    (place.ws / "lure").symlink_to(place.other)
    libc = ctypes.CDLL(None)
    one, other = os.fsencode(place.ws / "place"), os.fsencode(place.ws / "lure")
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            libc.renameat2(-100, one, -100, other, EXCHANGE)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_no_race_leads_a_change_outside(place: Place, files: Files) -> None:
    moving = place.ws / "place"
    with swapping(place):
        for number in range(ROUNDS):
            files.write(moving / "f", b"attacked")
            files.write(moving / f"new{number}", b"attacked")
            files.write_opened(moving / "f", b"attacked")
            files.ask("fs/createDirectory", moving / f"made{number}" / "deep", recursive=True)
            files.copy(place.ws / "f", moving / f"copied{number}")
            files.copy(moving, place.ws / f"tree{number}", recursive=True)
            files.ask("fs/remove", moving / "f", force=True)
            files.ask("fs/remove", moving / "d", recursive=True, force=True)
        assert outside_is_as_it_was(place)


def test_no_race_leads_a_look_outside(place: Place, files: Files) -> None:
    hidden = Files(place, narrow(place))
    moving = place.ws / "place"
    seen: list[Json] = []
    with swapping(place):
        for number in range(ROUNDS):
            seen.append(hidden.read(moving / "f"))
            seen.append(hidden.read_opened(moving / "f"))
            seen.append(hidden.names(moving))
            hidden.copy(moving / "f", place.ws / f"copied{number}")
            hidden.copy(moving, place.ws / f"tree{number}", recursive=True)
            hidden.ask("fs/getMetadata", moving / "f")
            hidden.ask("fs/walk", moving)
    assert SECRET not in seen
    for path in place.ws.rglob("*"):
        if path.is_file() and "lure" not in path.parts and path.resolve().is_relative_to(place.ws):
            assert path.read_bytes() != SECRET, path


DOTS = [
    "{ws}/../other/{name}",
    "{ws}/%2e%2e/other/{name}",
    "{ws}/%2E%2e/other/{name}",
    "{ws}/.%2e/other/{name}",
    "{ws}/sub/../../other/{name}",
    "{ws}/./.././other/./{name}",
    "{ws}//..//other//{name}",
    "{ws}/%252e%252e/other/{name}",
    "{ws}/..%2fother/{name}",
    "{ws}/..\\other\\{name}",
    "/proc/self/root{other}/{name}",
    "/proc/self/cwd/../other/{name}",
    "/proc/thread-self/root{other}/{name}",
    "/dev/fd/../../..{other}/{name}",
]


def test_dots_lead_nowhere(place: Place, files: Files) -> None:
    hidden = Files(place, narrow(place))
    for form, name in itertools.product(DOTS, ("f", "new")):
        path = form.format(ws=place.ws, other=place.other, name=name)
        for method in ("fs/writeFile", "fs/createDirectory", "fs/remove"):
            extra = {"dataBase64": "eA=="} if method == "fs/writeFile" else {}
            files.ask(method, path, **extra)
        files.copy(place.ws / "f", path)
        assert hidden.read(path) != SECRET
        assert hidden.read_opened(path) != SECRET
    assert outside_is_as_it_was(place)


def test_special_files_neither_hang_nor_open(place: Place, files: Files) -> None:
    fifo = place.ws / "fifo"
    os.mkfifo(fifo)
    place.own()
    for path in (fifo, "/dev/tty", "/dev/ptmx", "/dev/console", "/dev/stdin", "/dev/fd/0"):
        assert isinstance(files.read(path), tuple), path
        assert isinstance(files.write(path), tuple), path
        assert isinstance(files.copy(place.ws / "f", path), tuple), path
    assert files.ask("fs/remove", fifo) == {}


def test_long_paths_are_answered(place: Place, files: Files) -> None:
    for length in (255, 256, 4095, 4096, 70000, 1 << 20):
        forms = (f"/{'x' * length}", "/y" * (length // 2), f"/{'../' * (length // 3)}f")
        for form in forms:
            assert isinstance(files.write(f"{place.ws}{form}"), tuple) or length == 255
    assert files.read(place.ws / "f") == b"in"


MALFORMED: list[Json] = [
    {},
    [],
    "read-only",
    {"permissions": {"type": "managed"}, "windowsSandboxLevel": "disabled"},
    {"permissions": {"type": "disabled"}},
    {"permissions": {"type": "other"}, "windowsSandboxLevel": "disabled"},
    {"permissions": {"type": "managed", "network": "restricted", "file_system": {"type": "restricted"}},
     "windowsSandboxLevel": "disabled"},
    {"permissions": {"type": "managed", "network": "restricted", "file_system":
     {"type": "restricted", "entries": [{"path": {"type": "path", "path": "relative"}, "access": "write"}]}},
     "windowsSandboxLevel": "disabled"},
    {"permissions": {"type": "managed", "network": "restricted", "file_system":
     {"type": "restricted", "entries": [{"path": {"type": "path", "path": "/"}, "access": "all"}]}},
     "windowsSandboxLevel": "disabled"},
    {"permissions": {"type": "disabled"}, "windowsSandboxLevel": "Off"},
]  # fmt: skip


def test_a_malformed_policy_is_refused_and_never_left_out(place: Place) -> None:
    for sandbox in MALFORMED:
        assert_refused(place, sandbox)
    assert not (place.ws / "new").exists()


def assert_refused(place: Place, sandbox: Json) -> None:
    params = {"path": f"file://{place.ws}/new", "dataBase64": "eA==", "sandbox": sandbox}
    start = {"processId": "m", "argv": ["touch", f"{place.ws}/new"], "cwd": f"file://{place.ws}", "env": {}}
    for method, members in (
        ("fs/writeFile", params),
        ("process/start", {**start, "tty": False, "sandbox": sandbox}),
    ):
        with pytest.raises(RemoteError) as refused:
            place.peer.call(method, members)
        assert refused.value.code == -32602, sandbox


def test_policies_are_never_mixed(place: Place, files: Files) -> None:
    """Two policies at a time, asked in turns: a worker of the one never serves the other."""
    hidden, reading = Files(place, narrow(place)), Files(place, read_only(place.ws))
    for number in range(ROUNDS):
        name = place.ws / f"n{number}"
        assert isinstance(hidden.read(place.other / "f"), tuple)
        assert reading.read(place.other / "f") == SECRET
        assert isinstance(reading.write(name), tuple)
        assert files.write(name) == {}
        assert isinstance(files.write(place.other / "n"), tuple)
    assert outside_is_as_it_was(place)


def test_a_plan_is_never_older_than_the_call(place: Place, files: Files) -> None:
    denying = Files(place, workspace_write(place.ws, rule(place.ws / "later", "deny")))
    assert isinstance(denying.read(place.ws / "later"), tuple)
    place.make("ws/later", "secret")
    assert denying.read(place.ws / "later") != b"secret"
    assert files.write(place.ws / ".git" / "x") != {}
    place.make("ws/.git/config", "kept")
    assert files.write(place.ws / ".git" / "config") != {}
    # What was the workspace is another folder now, and a link stands in its place.
    place.ws.rename(place.folder / "moved")
    place.ws.symlink_to(place.other)
    files.write(place.ws / "f", b"attacked")
    files.write(place.folder / "moved" / "g", b"attacked")
    place.ws.unlink()
    (place.folder / "moved").rename(place.ws)
    assert (place.ws / ".git" / "config").read_text() == "kept"
    assert not (place.ws / "g").exists()


def test_files_of_processes_are_nobodys(place: Place, files: Files) -> None:
    """Through every way of reading, under policies that grant reading everything."""
    assert place.server is not None
    names = ("environ", "mem", "maps", "cmdline", "fd/0", "fd/3", "root/etc/hostname", "cwd/f")
    for reader in (files, Files(place, read_only(place.ws))):
        for process in ("self", "thread-self", "1", str(place.server.pid), str(os.getpid())):
            for name in names:
                for look in (reader.read, reader.read_opened):
                    answer = look(f"/proc/{process}/{name}")
                    assert isinstance(answer, tuple), (process, name, answer)
            assert isinstance(reader.names(f"/proc/{process}/fd"), tuple)


def test_a_copied_hole_takes_no_room(place: Place, files: Files) -> None:
    with open(place.ws / "hole", "wb") as file:
        file.truncate(2**41)
    place.own()
    assert files.copy(place.ws / "hole", place.ws / "copy") == {}
    status = os.stat(place.ws / "copy")
    assert (status.st_size, status.st_blocks) == (2**41, 0)
