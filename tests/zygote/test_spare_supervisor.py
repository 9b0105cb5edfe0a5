"""The supervisor that waits for the next call: which calls it serves, and that they get what others get."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from execserver.rules.policy import Policy
from execserver.rules.policy_record import encode_policy
from execserver.sandbox.plan import WRITE
from execserver.zygote.confine import spare_init
from execserver.zygote.confinement import LANDLOCK, NATIVE
from execserver.zygote.records import Release
from execserver.zygote.supervision.records import WRAPPER, Supervision
from tests.support.proc import children_of, command_line, descriptors, is_over, may_look_into
from tests.support.roots import USERS, give, mount, plan
from tests.support.sandbox_init import COMPILED, MAKERS
from tests.support.waiting import wait_until
from tests.zygote.supervised import FULL_ACCESS, NotStarted, Supervised, allow, forbid, spare_of, spares

PLACES = (NATIVE, LANDLOCK, FULL_ACCESS)


@pytest.fixture(params=MAKERS)
def maker(request: pytest.FixtureRequest) -> str:
    """Return what makes the sandboxes: Python, or the compiled template."""
    return str(request.param)


def init_of(waiting: int) -> int:
    """Return the pid of the spare init of a waiting supervisor, when that waits, too."""
    return wait_until(lambda: next(iter(spares(waiting)), 0))


@pytest.mark.parametrize("place", PLACES)
def test_it_serves_one_call_and_another_waits(zygote: Supervised, place: str) -> None:
    assert zygote.call("echo first", place=place) == (0, "first\n", "")
    seen = set()
    for number in range(3):
        waiting = spare_of(zygote)
        assert waiting not in seen
        seen.add(waiting)
        with zygote.shell(f"echo {number}; false", place=place) as shell:
            assert shell.pid == waiting
            assert (shell.end(), shell.out, shell.err) == (1, f"{number}\n", "")


def test_its_spare_init_becomes_the_sandbox_init(zygote: Supervised) -> None:
    zygote.call("true")
    init = init_of(spare_of(zygote))
    with zygote.shell("read line < /dev/null; sleep 60") as shell:
        assert children_of(shell.pid) == [init]
        wait_until(lambda: [command_line(pid) for pid in children_of(init)] != [])
        os.kill(shell.pid, signal.SIGTERM)
        assert shell.end() == -signal.SIGKILL
    assert is_over(init)


def test_each_call_has_the_rules_folder_and_plan_of_its_own(zygote: Supervised, tmp_path: Path) -> None:
    give(tmp_path, USERS[-1])
    tmp_path.chmod(0o777)
    outside = 'grep -c "Seccomp:.0" /proc/self/status'
    writable = plan(mount(WRITE, tmp_path))
    for _ in range(2):  # the second time, both plans are known to the spare init
        assert zygote.call(f"{outside}; pwd; touch {tmp_path}/x", allow("grep"))[:2] == (1, "1\n/\n")
        spare_of(zygote)
        script = f"{outside}; pwd; touch x && rm x"
        denied = "Execution denied: Execution forbidden by policy\n"
        assert zygote.call(script, forbid("grep"), cwd=tmp_path, view=writable) == (
            0,
            f"{tmp_path}\n",
            denied,
        )
        spare_of(zygote)
    assert not (tmp_path / "x").exists()


def test_a_folder_that_was_replaced_since_is_refused(zygote: Supervised, tmp_path: Path) -> None:
    give(tmp_path, USERS[-1])
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o777)
    view = plan(mount(WRITE, folder))
    zygote.call("true", view=view)
    spare_of(zygote)
    folder.rename(tmp_path / "before")
    folder.mkdir(mode=0o777)
    with pytest.raises(NotStarted, match=f"cannot mount {folder}"):
        zygote.call("true", view=view)


def test_a_signal_that_came_while_it_waited_does_not_end_the_call(zygote: Supervised) -> None:
    zygote.call("true")
    waiting = spare_of(zygote)
    os.kill(waiting, signal.SIGTERM)
    with zygote.shell("echo on") as shell:
        assert shell.pid == waiting
        assert (shell.end(), shell.out) == (0, "on\n")


def test_one_that_was_killed_is_not_missed_and_leaves_nothing(zygote: Supervised) -> None:
    zygote.call("true")
    waiting = spare_of(zygote)
    init = init_of(waiting)
    os.kill(waiting, signal.SIGKILL)
    # Both: it closes what leads to its init before what leads to the zygote.
    wait_until(lambda: is_over(init) and is_over(waiting))
    assert zygote.call("echo next") == (0, "next\n", "")
    assert spare_of(zygote) != waiting


def test_both_end_with_the_zygote(zygote: Supervised) -> None:
    zygote.call("true")
    waiting = spare_of(zygote)
    init = init_of(waiting)
    os.kill(zygote.pid, signal.SIGKILL)
    wait_until(lambda: is_over(waiting) and is_over(init))


def test_a_released_zygote_keeps_none(zygote: Supervised) -> None:
    zygote.call("true")
    waiting = spare_of(zygote)
    zygote.send(Release())
    assert zygote.reap() == 0
    assert is_over(waiting)


def test_an_old_init_is_not_used_but_its_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_init, "FRESH_S", 0.0)
    with Supervised(USERS[-1]) as zygote:
        zygote.call("true")
        waiting = spare_of(zygote)
        init = init_of(waiting)
        with zygote.shell("echo on; sleep 60") as shell:
            assert shell.pid == waiting
            shell.follow(lambda: shell.out == "on\n")
            assert is_over(init)
            assert len(children_of(waiting)) == 1
            os.kill(waiting, signal.SIGTERM)
            shell.end()


def test_the_wrapper_s_calls_are_served_too(zygote: Supervised) -> None:
    supervision = Supervision(encode_policy(Policy(())), False, WRAPPER, b"/nowhere")
    zygote.call("true", supervision=supervision)
    waiting = spare_of(zygote)
    with zygote.shell("echo $BASH_EXEC_WRAPPER", supervision=supervision) as shell:
        assert shell.pid == waiting
        assert (shell.end(), shell.out) == (0, "/nowhere\n")


def test_nobody_looks_into_them_and_they_hold_nothing_of_a_call(zygote: Supervised, maker: str) -> None:
    zygote.call("true")
    waiting = spare_of(zygote)
    init = init_of(waiting)
    for pid in (waiting, init):
        # Its files in /proc belong to root: it is not dumpable, from its first moment on.
        assert os.stat(f"/proc/{pid}/environ").st_uid == 0
    if may_look_into(waiting):
        assert set(descriptors(init)) == {0, 1, 2, 3}
        held = {number: place for number, place in descriptors(waiting).items() if number > 2}
        others = [place for place in held.values() if not place.startswith(("anon_inode:", "socket:"))]
        own = [] if maker == COMPILED else [f"/proc/{waiting}/mountinfo"]
        assert sorted(others) == ["/dev/null", *own]
