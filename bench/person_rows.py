"""What `bench client` measures: each row by execserver's client and by OpenSSH's, in seconds or MB/s.

A row is a function of the ends, of the way (`ours`, `ssh`, `rsync`) and of whether it is the quick round; it
returns figures by name.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import string
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import ptyprocess

from bench.person_ends import Ends, Missing

_WAIT_S = 180.0
_MIB = 1 << 20
_KEYS = [bytes((code,)) for code in string.ascii_letters.encode() if code not in b"DXm"]  # of sequences
OURS, SSH, RSYNC = "ours", "ssh", "rsync"

Figures = dict[str, float]


class Row(NamedTuple):
    """One measurement: its name, its figures' names with their units, how to take them, by which ways."""

    name: str
    units: dict[str, str]
    measure: Callable[[Ends, str, bool], Figures]
    ways: tuple[str, ...] = (OURS, SSH)
    only_far: bool = False


def run_true(ends: Ends, way: str, quick: bool) -> Figures:
    """A command that does nothing; ssh has an open connection."""
    return {"run true": _median_ms(_true(ends, way, master=True), 3 if quick else 20)}


def first_command(ends: Ends, way: str, quick: bool) -> Figures:
    """The same, by a new connection of either."""
    return {"run true, new connection": _median_ms(_true(ends, way, master=False), 2 if quick else 8)}


def _true(ends: Ends, way: str, *, master: bool) -> list[str]:
    if way == OURS:
        return [ends.program, "run", ends.box, "--", "true"]
    return ends.ssh("box", "true", master=master)


def _median_ms(command: list[str], times: int) -> float:
    return statistics.median(_seconds(command) for _ in range(times)) * 1000


def keys(ends: Ends, way: str, quick: bool) -> Figures:
    """From a key to when it shows on the terminal here: by its echo, or before that."""
    waits = []
    with _terminal(ends, way, "cat") as terminal:
        terminal.write(b"begin\n")
        _read_until(terminal, b"begin\r\nbegin\r\n")
        for number in range(20 if quick else 200):
            # Another one each time: what was shown before its echo is drawn again with each output.
            key = _KEYS[number % len(_KEYS)]
            begun = time.perf_counter()
            terminal.write(key)
            _read_until(terminal, key)
            waits.append((time.perf_counter() - begun) * 1000)
            time.sleep(0.005)
    waits.sort()
    return {"key p50": statistics.median(waits), "key p99": waits[int(len(waits) * 0.99)]}


def prompt(ends: Ends, way: str, quick: bool) -> Figures:
    """From the start of the program to the answer of a shell on a new connection."""
    begun = time.perf_counter()
    with _terminal(ends, way, "sh") as terminal:
        _ask(terminal, 0)
        return {"first prompt": (time.perf_counter() - begun) * 1000}


def reconnect(ends: Ends, way: str, quick: bool) -> Figures:
    """From the end of a cut of a minute to the answer of the same shell, which was asked meanwhile."""
    with _terminal(ends, way, "sh") as terminal:
        _ask(terminal, 0)
        ends.network.cut(lost=True)
        try:
            time.sleep(0.5)
            terminal.write(b"echo a''live\n")
            time.sleep(5 if quick else 60)
        finally:
            ends.network.cut(lost=False)
        begun = time.perf_counter()
        _read_until(terminal, b"alive\r\n")
        return {"prompt after a cut": time.perf_counter() - begun}


def copy_large(ends: Ends, way: str, quick: bool) -> Figures:
    """One large file to the box."""
    size = (_MIB if ends.network.is_far else 16 * _MIB) * (1 if quick else 8 if ends.network.is_far else 64)
    file = ends.folder / f"large{size}"
    if not file.exists():
        with file.open("wb") as out:
            for _ in range(size // _MIB):
                out.write(os.urandom(_MIB))
    return {"cp, large": size / 1e6 / _copied(ends, way, str(file))}


def copy_small(ends: Ends, way: str, quick: bool) -> Figures:
    """Many small files to the box."""
    count = 200 if quick else 1000 if ends.network.is_far else 10_000
    folder = ends.folder / f"small{count}"
    if not folder.exists():
        for number in range(count):
            place = folder / str(number // 100)
            place.mkdir(parents=True, exist_ok=True)
            (place / str(number)).write_bytes(os.urandom(number % 4000))
    return {"cp, small": count / _copied(ends, way, str(folder))}


def _copied(ends: Ends, way: str, source: str) -> float:
    target = str(ends.folder / f"there-{way}")
    config = str(ends.ssh_config)
    command = {
        OURS: [ends.program, "cp", "--box", ends.box, source, f":{target}"],
        SSH: ["scp", "-q", "-r", "-F", config, source, f"box:{target}"],
        RSYNC: ["rsync", "-a", "-e", f"ssh -F {config}", source, f"box:{target}"],
    }[way]
    if way == RSYNC and not shutil.which("rsync"):
        raise Missing("there is no rsync")
    try:
        return _seconds(command)
    finally:
        shutil.rmtree(target, ignore_errors=True)
        if os.path.exists(target):
            os.remove(target)


def forward(ends: Ends, way: str, quick: bool) -> Figures:
    """A forwarded port: from connecting to the first byte, and many bytes."""
    size = (_MIB if ends.network.is_far else 32 * _MIB) * (1 if quick else 8)
    with _forwarded(ends, way) as port:
        first = statistics.median(_fetch(port, 0) for _ in range(3 if quick else 20))
        return {"forward, first byte": first * 1000, "forward": size / 1e6 / _fetch(port, size)}


@contextmanager
def _forwarded(ends: Ends, way: str) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    spec = f"{port}:{ends.network.host}:{ends.source_port}"
    command = (
        [ends.program, "forward", ends.box, spec]
        if way == OURS
        else ends.ssh("-N", "-L", spec, "box", master=False)
    )
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as child:
        try:
            deadline = time.monotonic() + _WAIT_S
            while True:
                try:
                    _fetch(port, 0)
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
            yield port
        finally:
            child.terminate()


def _fetch(port: int, size: int) -> float:
    begun = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), _WAIT_S) as sock:
        sock.sendall(b"%d\n" % size)
        left = size + 1
        while left:
            data = sock.recv(_MIB)
            if not data:
                raise ConnectionError("the forwarded connection ended early")
            left -= len(data)
    return time.perf_counter() - begun


@contextmanager
def _terminal(ends: Ends, way: str, program: str) -> Iterator[ptyprocess.PtyProcess]:
    command = (
        [ends.program, "run", ends.box, "-t", "--keep", "15m", "--", program]
        if way == OURS
        else ends.ssh("-tt", "box", program, master=False)
    )
    terminal = ptyprocess.PtyProcess.spawn(command, env={**os.environ, "TERM": "xterm"})
    try:
        yield terminal
    finally:
        terminal.close(force=True)


def _ask(terminal: ptyprocess.PtyProcess, number: int) -> None:
    """Wait until a shell answers; what is typed ahead is answered, too."""
    terminal.write(b"echo rea''dy%d\n" % number)
    _read_until(terminal, b"ready%d\r\n" % number)


def _read_until(terminal: ptyprocess.PtyProcess, wanted: bytes) -> None:
    seen = b""
    while wanted not in seen:
        seen += terminal.read(65536)


def _seconds(command: list[str]) -> float:
    begun = time.perf_counter()
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=_WAIT_S * 10,
        check=False,
    )
    if done.returncode:
        raise Missing(f"{command[0]} failed: {done.stderr.decode(errors='replace').strip()[:300]}")
    return time.perf_counter() - begun


ROWS = [
    Row("true", {"run true": "ms"}, run_true),
    Row("first", {"run true, new connection": "ms"}, first_command),
    Row("prompt", {"first prompt": "ms"}, prompt),
    Row("keys", {"key p50": "ms", "key p99": "ms"}, keys),
    Row("large", {"cp, large": "MB/s"}, copy_large, (OURS, SSH, RSYNC)),
    Row("small", {"cp, small": "files/s"}, copy_small, (OURS, SSH, RSYNC)),
    Row("forward", {"forward": "MB/s", "forward, first byte": "ms"}, forward),
    Row("reconnect", {"prompt after a cut": "s"}, reconnect, only_far=True),
]
