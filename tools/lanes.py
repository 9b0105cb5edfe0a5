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
from contextlib import ExitStack
from typing import IO

from tools.problems import say

# About a third of the whole time each; everything else is the last lane.
LANES = (
    (
        *("tests/sandbox", "tests/rules", "tests/packaging", "tests/helpers"),
        "tests/e2e/test_sandboxed_files_races.py",
    ),
    (
        *("tests/e2e/test_transcripts.py", "tests/e2e/test_relay_faults.py"),
        *("tests/mcp", "tests/relay", "tests/remote", "tests/zygote"),
    ),
)
_NOTHING_COLLECTED = 5
_INTERRUPT_GRACE_S = 20


def run_limited(command: Sequence[str], variables: Mapping[str, str], limit_s: float) -> int:
    """Run a command; interrupt it, and kill it a little later, when it does not end in time."""
    return _end(_start(command, variables), time.monotonic() + limit_s, limit_s)


def run_in_lanes(command: Sequence[str], variables: Mapping[str, str], limit_s: float) -> int:
    """Run pytest in its lanes; the last one's output is shown as it comes, those of the others after it."""
    with ExitStack() as kept:
        until = time.monotonic() + limit_s
        outputs = [kept.enter_context(tempfile.TemporaryFile()) for _ in LANES]
        lanes = [
            _start([*command, *places], variables, output)
            for places, output in zip(LANES, outputs, strict=True)
        ]
        elsewhere = [f"--ignore={place}" for places in LANES for place in places]
        rest = _start([*command, *elsewhere], variables)
        statuses = [_end(lane, until, limit_s) for lane in (rest, *lanes)]
        sys.stdout.flush()
        for output in outputs:
            output.seek(0)
            os.write(1, b"\n" + output.read())
    # A lane may hold none of the tests that were chosen.
    worth = [status for status in statuses if status != _NOTHING_COLLECTED] or statuses
    return next((status for status in worth if status), 0)


def _start(
    command: Sequence[str], variables: Mapping[str, str], output: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=variables, stdout=output, stderr=output and subprocess.STDOUT)


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
