"""Running the tests: in three processes side by side, each with an end.

Which test runs where is fixed, so that a run can be repeated; nothing is shared between them but the machine.
There are more of them than processors in the smallest machine, since many tests mostly wait.  Standard
library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NamedTuple

from tools.problems import say

Lanes = Sequence[Sequence[str]]

# About a third of the whole time each; everything else is the last lane.
LANES: Lanes = (
    (
        *("tests/sandbox", "tests/rules", "tests/packaging", "tests/helpers", "tests/sdk", "tests/client"),
        *("tests/e2e/test_sandboxed_files_races.py", "tests/crash", "tests/machines"),
    ),
    (
        *("tests/e2e/test_transcripts.py", "tests/e2e/test_relay_faults.py"),
        *("tests/mcp", "tests/relay", "tests/remote", "tests/zygote"),
    ),
)
_NOTHING_COLLECTED = 5
_INTERRUPT_GRACE_S = 20


class Runner(NamedTuple):
    """How pytest is started: its command and environment, and where and as whom, if not as oneself."""

    command: Sequence[str]
    variables: Mapping[str, str]
    folder: Path | None = None
    user: int | None = None

    def start(self, words: Sequence[str], output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
        """Start it with further words; what it says goes to a file, if there is one."""
        return subprocess.Popen(
            [*self.command, *words],
            env=self.variables,
            cwd=self.folder,
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
            stdin=subprocess.DEVNULL if self.user is not None else None,
            stdout=output,
            stderr=output and subprocess.STDOUT,
        )


class _Lane(NamedTuple):
    """What became of one lane: what ran, its exit status, and how long it took."""

    name: str
    status: int
    seconds: float


def run_limited(command: Sequence[str], variables: Mapping[str, str], limit_s: float) -> int:
    """Run a command; interrupt it, and kill it a little later, when it does not end in time."""
    return _end(Runner(command, variables).start(()), time.monotonic() + limit_s, limit_s)


def run_in_lanes(command: Sequence[str], variables: Mapping[str, str], limit_s: float) -> int:
    """Run all tests in their lanes."""
    return play_all(Runner(command, variables), limit_s)


def play_all(runner: Runner, limit_s: float) -> int:
    """Run all tests in their lanes, however pytest is started."""
    return play(runner, LANES, limit_s, [f"--ignore={place}" for places in LANES for place in places])


def play(runner: Runner, lanes: Lanes, limit_s: float, rest: Sequence[str] | None = None) -> int:
    """Run pytest once for each lane, and with the words of `rest`, if given; tell how long each took.

    The last one's output is shown as it comes, those of the others after it.
    """
    words = [tuple(lane) for lane in lanes] + ([tuple(rest)] if rest is not None else [])
    names = [" ".join(lane) for lane in lanes] + ["everything else"] * (rest is not None)
    started = time.monotonic()
    with ExitStack() as kept:
        outputs = [kept.enter_context(tempfile.TemporaryFile()) for _ in words[:-1]]
        processes = [runner.start(*each) for each in zip(words, [*outputs, None], strict=True)]

        def end(name: str, process: subprocess.Popen[bytes]) -> _Lane:
            status = _end(process, started + limit_s, limit_s)
            return _Lane(name, status, time.monotonic() - started)

        with ThreadPoolExecutor(len(processes)) as threads:
            ended = list(threads.map(end, names, processes))
        sys.stdout.flush()
        for output in outputs:
            output.seek(0)
            os.write(1, b"\n" + output.read())
    for lane in ended:
        what = {0: "passed", _NOTHING_COLLECTED: "holds none of these tests"}.get(lane.status, "FAILED")
        say(f"{what} after {lane.seconds:.0f} s: {lane.name}")
    # A lane may hold none of the tests that were chosen.
    return worst(*(lane.status for lane in ended))


def worst(*statuses: int) -> int:
    """Return the exit status of several runs: that of one that failed, if any did."""
    worth = [status for status in statuses if status != _NOTHING_COLLECTED] or statuses
    return next((status for status in worth if status), 0)


def _end(process: subprocess.Popen[bytes], until: float, limit_s: float) -> int:
    try:
        return process.wait(max(until - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        say(f"the tests did not end within {limit_s / 60:.0f} minutes; interrupting them")
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_INTERRUPT_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return 1
