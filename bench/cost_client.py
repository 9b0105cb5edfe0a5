"""What a key costs the person's client: a terminal here, `cat` on a terminal of a server, the key's echo."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import ptyprocess

from bench.cost_remote import patient
from bench.server import Server

CLIENT = "client"
_PROGRAM = [sys.executable, "-m", "execserver"]
_BEGIN = b"begin\n"


class ClientEnds:
    """A client at its terminal; `url` has the terminal's descriptor, `pid` is the client's."""

    def __init__(self, terminal: ptyprocess.PtyProcess) -> None:
        self.url = f"terminal:{terminal.fd}"
        self.pid: int = terminal.pid


@contextmanager
def serving_client(counted: Sequence[str]) -> Iterator[ClientEnds]:
    """Start a server, and by the words of `counted` a client with a terminal."""
    with Server("ours", shlex.join([*_PROGRAM, "--listen", "ws://127.0.0.1:0"]), None) as server:
        terminal = ptyprocess.PtyProcess.spawn([*patient(counted), "run", server.url, "-t", "--", "cat"])
        try:
            terminal.write(_BEGIN)
            _read_until(terminal.fd, b"begin\r\nbegin\r\n")
            yield ClientEnds(terminal)
        finally:
            terminal.sendintr()  # callgrind has to write its report before the end
            terminal.wait()
            terminal.close()


def key(url: str, folder: Path, times: int) -> None:
    """Type a key, and wait for its echo."""
    terminal = int(url.partition(":")[2])
    for _ in range(times):
        os.write(terminal, b"k")
        _read_until(terminal, b"k")
    os.write(terminal, b"\n")  # a line of a terminal has an end
    _read_until(terminal, b"k\r\n")


def _read_until(terminal: int, wanted: bytes) -> None:
    seen = b""
    while not seen.endswith(wanted):
        seen += os.read(terminal, 65536)
