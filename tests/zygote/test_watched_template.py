"""The compiled init of a supervised shell: what it is a child of, when Python takes over, what it leaves."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.rules.policy import Policy
from execserver.rules.policy_record import encode_policy
from execserver.sandbox.kernel import mounts
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.zygote.confine import plan_cache
from execserver.zygote.supervision.records import WRAPPER, Supervision
from tests.support.proc import children_of, is_over
from tests.support.roots import in_child
from tests.support.sandbox_init import COMPILED, MAKERS, program_of
from tests.support.waiting import wait_until
from tests.zygote.confined_harness import records_folder
from tests.zygote.harness import PATH
from tests.zygote.supervised import Supervised, allow, forbid, spare_of

pytestmark = pytest.mark.skipif(
    in_child(lambda: int(mounts.available(Kernel())) << 8).code == 0, reason="no mount API of Linux 5.12"
)

OUTSIDE = 'grep -c "Seccomp:.0" /proc/self/status'


@pytest.fixture
def maker() -> str:
    return COMPILED


@pytest.fixture
def giving_up(monkeypatch: pytest.MonkeyPatch, user: int, tmp_path: Path) -> Iterator[Supervised]:
    """Return a zygote whose recorded roots name an entry of /proc that is gone: only the slow path copes."""
    monkeypatch.setattr(plan_cache, "settings_of_host", lambda: [b"no-such-entry"])
    with Supervised(user, folder=records_folder(tmp_path, user), program=program_of(COMPILED)) as started:
        yield started


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")


@pytest.mark.parametrize("waits", [False, True], ids=["forked at once", "from a spare"])
def test_it_is_the_child_of_the_supervisor_and_nothing_else_of_ours_is_left(
    zygote: Supervised, waits: bool
) -> None:
    if waits:
        zygote.call("true")
        spare_of(zygote)
    with zygote.shell("read line < /dev/null; sleep 60") as shell:
        wait_until(lambda: any(map(children_of, children_of(shell.pid))))
        # The template has ended: it serves one start.
        (init,) = wait_until(lambda: found if len(found := children_of(shell.pid)) == 1 else [])
        assert name_of(init) == "execserver-view"
        os.kill(shell.pid, signal.SIGKILL)
        wait_until(lambda: is_over(init))


@pytest.mark.parametrize("again", [False, True], ids=["forked at once", "from a spare"])
def test_where_it_gives_up_python_starts_the_shell_on_the_same_stdio(
    giving_up: Supervised, again: bool
) -> None:
    if again:
        giving_up.call("true")
        spare_of(giving_up)
    script = f"echo out; echo err >&2; {OUTSIDE}; id; exit 7"
    status, out, err = giving_up.call(script, allow("grep"), forbid("id"))
    assert (status, out) == (7, "out\n1\n")
    assert err.startswith("err\nExecution denied: ")


def test_the_shell_s_end_is_told_though_others_live_on(zygote: Supervised) -> None:
    assert zygote.call("(sleep 0.3; echo late) & echo now; exit 3") == (3, "now\nlate\n", "")


def test_a_shell_that_is_not_there_is_told_as_by_python(user: int, tmp_path: Path) -> None:
    told, folder = [], records_folder(tmp_path, user)
    for maker in MAKERS:
        with Supervised(user, folder=folder, program=program_of(maker)) as zygote:
            told.append(zygote.call("", argv=[b"/nonesuch/shell", b"-c", b"true"]))
            told.append(zygote.call("pwd", cwd="/dev/shm"))
    assert told[:2] == told[2:]
    assert told[0][0] == 101


def test_the_wrapper_s_shell_is_python_s(zygote: Supervised) -> None:
    supervision = Supervision(
        encode_policy(Policy()), interception=WRAPPER, wrapper=b"/nowhere", server_env=[PATH]
    )
    with zygote.shell("sleep 60", supervision=supervision) as shell:
        (init,) = wait_until(lambda: children_of(shell.pid))
        assert name_of(init) != "execserver-view"
