"""Memory of the zygote and of a supervisor: after many starts it is what it was after some."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from execserver.sandbox.plan import WRITE, Mount
from tests.conftest import LONG
from tests.support.proc import descriptors, resident_bytes
from tests.support.roots import plan
from tests.support.waiting import wait_until
from tests.zygote.harness import Zygote
from tests.zygote.supervised import Supervised, allow, spare_of

MIB = 1024 * 1024
GROWN_BYTES = 1 * MIB  # measured: below 0.1 MiB once warm, after 1,000 starts as after 50
LIMIT_S = 1800.0 if LONG else 30.0  # for the programs of one shell; those outside take 2 ms each
PLANS = 40  # more than are kept


class ServingZygote(Supervised):
    """A zygote as the server starts it, with the memory of nobody else."""

    def __init__(self) -> None:
        Zygote.__init__(self)


def grown_by(
    zygote: Zygote,
    start: Callable[[int], None],
    warm: int,
    starts: int,
    rest: Callable[[], object] = lambda: None,
) -> None:
    """Fail when starts after some others make the zygote larger, or leave it more descriptors.

    `rest` waits until everything is there that is made behind a start.
    """
    for number in range(warm):
        start(number)
    rest()
    memory, opened = resident_bytes(zygote.pid), len(descriptors(zygote.pid))
    for number in range(starts):
        start(number)
    rest()
    assert resident_bytes(zygote.pid) - memory < GROWN_BYTES
    wait_until(lambda: len(descriptors(zygote.pid)) <= opened)  # the last one's end may be on its way


@pytest.mark.timeout(3600 if LONG else 60)
def test_plain_starts() -> None:
    with ServingZygote() as zygote:

        def start(number: int) -> None:
            assert zygote.run(b"/bin/true")[0] == 0
            assert number % 5 or zygote.run_on_terminal(b"/bin/true")[0] == 0

        # Has it load what sandboxes need, which it does else in its first idle moment: 2 MiB.
        assert zygote.run(b"/bin/true", plan=plan())[0] == 0
        grown_by(zygote, start, 50, 60_000 if LONG else 400)


@pytest.mark.timeout(3600 if LONG else 60)
def test_sandboxed_starts_with_changing_plans(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(PLANS)]
    for folder in folders:
        folder.mkdir()
    plans = [plan(Mount(WRITE, bytes(folder))) for folder in folders]
    with ServingZygote() as zygote:

        def start(number: int) -> None:
            status, out, err = zygote.run(b"/bin/true", plan=plans[number % PLANS])
            assert (status, out, err) == (0, b"", b"")

        grown_by(zygote, start, PLANS, 30_000 if LONG else 2 * PLANS)


@pytest.mark.timeout(3600 if LONG else 60)
def test_shell_calls() -> None:
    with ServingZygote() as zygote:

        def start(number: int) -> None:
            assert zygote.call("true")[0] == 0

        grown_by(zygote, start, 10, 10_000 if LONG else 40, lambda: spare_of(zygote))


@pytest.mark.timeout(3600 if LONG else 60)
@pytest.mark.parametrize("runs_outside", [False, True])
def test_a_supervisor_of_many_programs(runs_outside: bool) -> None:
    warm, more = 600, 10_000 if LONG else 300  # of those outside some hundred are remembered for a while
    loop = "run() { i=0; while [ $i -lt $1 ]; do /bin/true; i=$((i+1)); done; }; "
    script = f"{loop} run {warm}; echo warm; run {more}; echo done; sleep 60"
    with ServingZygote() as zygote, zygote.shell(script, *([allow("true")] if runs_outside else [])) as shell:
        shell.follow(lambda: "warm" in shell.out)
        memory, opened = resident_bytes(shell.pid), len(descriptors(shell.pid))
        shell.follow(lambda: "done" in shell.out, limit_s=LIMIT_S)
        assert resident_bytes(shell.pid) - memory < GROWN_BYTES
        # Fewer if more programs were just beginning when it was counted first.
        wait_until(lambda: len(descriptors(shell.pid)) <= opened + 2)
        os.kill(shell.pid, signal.SIGTERM)
        shell.end()
