"""Running the tests: in four processes side by side, each with an end.

Which test runs where is fixed, so that a run can be repeated; nothing is shared between them but the machine.
There are more of them than processors in the smallest machine, since many tests mostly wait.  The few
that failed can have a second go, alone: it tells those that fail from those that a busy machine made fail.
Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from tools.problems import say

Lanes = Sequence[Sequence[str]]

# About a quarter of the whole time each; everything else is the last lane.  A process forks the faster, the
# less it holds: so zygotes and sandboxes come first in their lanes, beside what needs little room.
LANES: Lanes = (
    (
        *("tests/sandbox", "tests/helpers", "tests/crash", "tests/rules", "tests/machines"),
        *("tests/e2e/test_sandboxed_files.py", "tests/e2e/test_sandboxed_files_denied.py"),
        *("tests/e2e/test_sandboxed_files_races.py", "tests/e2e/test_sandboxed_metadata.py"),
        *("tests/e2e/test_sandboxed_processes.py", "tests/e2e/test_process_isolation.py"),
        *("tests/e2e/test_transcripts.py", "tests/e2e/test_relay_faults.py"),
        *("tests/e2e/test_egress_transcripts.py", "tests/e2e/test_launch_forms.py"),
        "tests/e2e/test_shell_snapshots.py",
    ),
    ("tests/zygote", "tests/packaging"),
    (
        *("tests/mcp", "tests/box", "tests/remote", "tests/client", "tests/relay", "tests/sdk"),
        "tests/protocol",
    ),
)
# Where more than these failed, it was not the machine.
MOST_AGAIN = 12
# What pytest's exit statuses mean; any further one says that it did not play all it was told to.
_PASSED, _FAILED, _INTERRUPTED, _NOTHING_COLLECTED = 0, 1, 2, 5
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
    """What became of one lane: what ran, its exit status, how long it took, and which tests failed."""

    name: str
    status: int
    seconds: float
    failed: Sequence[str]


def run_limited(command: Sequence[str], variables: Mapping[str, str], limit_s: float) -> int:
    """Run a command; interrupt it, and kill it a little later, when it does not end in time."""
    return _end(Runner(command, variables).start(()), time.monotonic() + limit_s, limit_s)


def run_in_lanes(
    command: Sequence[str], variables: Mapping[str, str], limit_s: float, second_go: bool = False
) -> int:
    """Run all tests in their lanes."""
    return play_all(Runner(command, variables), limit_s, second_go)


def play_all(runner: Runner, limit_s: float, second_go: bool = False) -> int:
    """Run all tests in their lanes, however pytest is started."""
    rest = [f"--ignore={place}" for places in LANES for place in places]
    return play(runner, LANES, limit_s, rest, second_go=second_go)


def play(
    runner: Runner, lanes: Lanes, limit_s: float, rest: Sequence[str] | None = None, second_go: bool = False
) -> int:
    """Run pytest once for each lane, and with the words of `rest`, if given; tell how long each took.

    The last one's output is shown as it comes, those of the others after it.  With `second_go`, which is for
    a runner that plays on after a failure, the few tests that failed are then played alone, and count as they
    end there.  The limit, in seconds, is for all of it.
    """
    words = [tuple(lane) for lane in lanes] + ([tuple(rest)] if rest is not None else [])
    names = [" ".join(lane) for lane in lanes] + ["everything else"] * (rest is not None)
    started = time.monotonic()
    until = started + limit_s
    with ExitStack() as kept:
        notes = kept.enter_context(_folder_of(runner))
        outputs = [kept.enter_context(tempfile.TemporaryFile()) for _ in words[:-1]]
        places = [notes / str(number) for number in range(len(words))]
        processes = [
            runner.start([*_apart(place), *each], output)
            for place, each, output in zip(places, words, [*outputs, None], strict=True)
        ]

        def end(name: str, process: subprocess.Popen[bytes], place: Path) -> _Lane:
            status = _end(process, until, limit_s)
            return _Lane(name, status, time.monotonic() - started, _noted(place))

        with ThreadPoolExecutor(len(processes)) as threads:
            ended = list(threads.map(end, names, processes, places))
        sys.stdout.flush()
        for output in outputs:
            output.seek(0)
            os.write(1, b"\n" + output.read())
        for lane in ended:
            what = {_PASSED: "passed", _NOTHING_COLLECTED: "holds none of these tests"}.get(
                lane.status, "FAILED"
            )
            say(f"{what} after {lane.seconds:.0f} s: {lane.name}")
        again = _worth_a_second_go(ended) if second_go else []
        if again:
            return _play_alone(runner, again, until, notes / "alone")
    # A lane may hold none of the tests that were chosen.
    return worst(*(lane.status for lane in ended))


def _worth_a_second_go(ended: Sequence[_Lane]) -> list[str]:
    """Return the tests that failed, if a second go can tell more: all was played, and nearly all passed."""
    if any(lane.status not in (_PASSED, _FAILED, _NOTHING_COLLECTED) for lane in ended):
        return []
    if any(lane.status == _FAILED and not lane.failed for lane in ended):
        return []  # such a one ended before it could tell what failed
    failed = [test for lane in ended for test in lane.failed]
    return failed if len(failed) <= MOST_AGAIN else []


def _play_alone(runner: Runner, tests: Sequence[str], until: float, place: Path) -> int:
    """Play these tests once more with nothing beside them; tell how each ended, return the exit status."""
    say(f"playing once more, alone: {len(tests)} of the tests, which failed beside others")
    limit_s = max(until - time.monotonic(), 0)
    status = _end(runner.start([*_apart(place), *tests]), until, limit_s)
    if status not in (_PASSED, _FAILED):
        say("the second go did not come to its end")
        return status
    failed = _noted(place)
    for test in tests:
        how = "FAILED again, played alone" if test in failed else "passed when played alone"
        say(f"{how}: {test} (failed beside others)")
    return status


@contextmanager
def _folder_of(runner: Runner) -> Iterator[Path]:
    """Make a folder for what the lanes note and their tests write, all of it their user's; it is removed."""
    place = runner.variables.get("PYTEST_DEBUG_TEMPROOT")
    with tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as folder:
        if runner.user is not None:
            os.chown(folder, runner.user, runner.user)
        yield Path(folder)


def _apart(place: Path) -> list[str]:
    """Return the words by which pytest keeps its notes and the folders of its tests where no other lane does.

    Left to itself it shares one folder with every other run of the same user, and at its end removes old ones
    that another lane may be removing: it then fails though every test has passed.
    """
    return [f"--override-ini=cache_dir={place}", f"--basetemp={place}-of"]


def _noted(place: Path) -> list[str]:
    """Return the tests that failed as pytest noted it at its end; none if it did not get there."""
    try:
        return list(json.loads((place / "v" / "cache" / "lastfailed").read_bytes()))
    except FileNotFoundError:
        return []


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
        return _INTERRUPTED
