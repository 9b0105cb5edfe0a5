"""Running the tests: in two processes side by side, each with an end.

Which test runs where is fixed, so that a run can be repeated; nothing is shared between the two but the
machine.  Standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO

from tools.problems import say

# About half of the whole time; everything else is the other lane.
FIRST_LANE = ("tests/sandbox", "tests/zygote", "tests/relay", "tests/remote", "tests/packaging")
_NOTHING_COLLECTED = 5
_INTERRUPT_GRACE_S = 20


def run_limited(command: Sequence[str], variables: Mapping[str, str], limit_s: float) -> int:
    """Run a command; interrupt it, and kill it a little later, when it does not end in time."""
    return _end(_start(command, variables), time.monotonic() + limit_s, limit_s)


def run_in_lanes(command: Sequence[str], variables: Mapping[str, str], limit_s: float) -> int:
    """Run pytest in two lanes; the second one's output is shown as it comes, the first one's after it."""
    with tempfile.TemporaryFile() as output:
        until = time.monotonic() + limit_s
        first = _start([*command, *FIRST_LANE], variables, output)
        rest = _start([*command, *(f"--ignore={folder}" for folder in FIRST_LANE)], variables)
        statuses = [_end(rest, until, limit_s), _end(first, until, limit_s)]
        output.seek(0)
        sys.stdout.flush()
        os.write(1, b"\n" + output.read())
    # One lane may hold none of the tests that were chosen.
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
