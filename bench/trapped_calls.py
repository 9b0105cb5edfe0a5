"""Counts the system calls that an exec supervisor makes for one program of a shell, inside and outside.

They are the whole of what a supervisor does for a program that the rules know; its instructions cannot be
counted, since no tool follows what it forks into namespaces.  A busy machine only adds to them: there are
more waits, and a program that takes longer than two milliseconds gets a stand-in.  So the fewest of several
rounds are taken.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from bench.shell_rows import PROGRAMS, RULES
from bench.shell_tool import BASH, OURS, Contestant, Tool
from tests.support.proc import descendants_of, descriptors


class TrappedRow(NamedTuple):
    """A program of a shell: where it runs, inside or outside."""

    name: str
    title: str
    place: str


TRAPPED = [
    TrappedRow(f"trapped_{place}", f"a program of a shell that runs {place}", place) for place in PROGRAMS
]
_TIMES = 30
_ROUNDS = 5
_LISTENER = "anon_inode:seccomp notify"
_LIMIT_S = 20.0


def calls(row: TrappedRow) -> float | None:
    """Return the supervisor's system calls for one program; None where they cannot be counted."""
    if os.geteuid() != 0 or not shutil.which("strace"):
        return None  # only root may trace a supervisor
    with tempfile.TemporaryDirectory(prefix="bench-trapped-") as place:
        (Path(place) / "rules").mkdir()
        (Path(place) / "rules" / "default.rules").write_text(RULES)
        tool = Tool(Contestant("ours", (*OURS, "mcp"), BASH), place, place)
        try:
            once, twice = (
                min(_counted(tool, Path(place), row.place, times) for _ in range(_ROUNDS))
                for times in (_TIMES, 2 * _TIMES)
            )
        finally:
            tool.close()
    return (twice - once) / _TIMES


def _counted(tool: Tool, place: Path, where: str, times: int) -> int:
    """Return the calls while a loop runs, which begins and ends when it is told."""
    begin, end, report = (place / f"{name}{times}" for name in ("begin", "end", "report"))
    for fifo in (begin, end):
        fifo.unlink(missing_ok=True)
        os.mkfifo(fifo)
    loop = f"i=0; while [ $i -lt {times} ]; do {PROGRAMS[where]}; i=$((i+1)); done"
    call = threading.Thread(target=tool.call, args=(f"read x < {begin}; {loop}; read x < {end}",))
    call.start()
    with begin.open("w") as beginning:  # once the shell reads
        supervisor = _supervisor_of(tool.pid)
        command = ["strace", "-c", "-o", str(report), "-p", str(supervisor)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as tracer:
            _await_tracer(supervisor)
            beginning.write("x\n")
            beginning.flush()
            with end.open("w") as ending:
                tracer.send_signal(signal.SIGINT)
                tracer.wait(_LIMIT_S)
                ending.write("x\n")
    call.join(_LIMIT_S)
    total = re.search(r"^100\.00 +\S+ +\S* *(\d+)", report.read_text(), re.MULTILINE)
    return int(total[1]) if total else 0


def _supervisor_of(tool: int) -> int:
    return next(pid for pid in descendants_of(tool) if _LISTENER in descriptors(pid).values())


def _await_tracer(pid: int) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while "TracerPid:\t0" in Path(f"/proc/{pid}/status").read_text():
        if time.monotonic() > deadline:
            raise SystemExit("bench: strace could not attach to the supervisor")
        time.sleep(0.01)
