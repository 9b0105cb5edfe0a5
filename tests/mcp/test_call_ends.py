"""What a shell leaves behind when it ends: its output is kept for two seconds, then all ends."""

from __future__ import annotations

import os
import time

import gevent
import pytest
from gevent.event import Event

from execserver.mcp.tool import ToolError
from execserver.zygote.supervision.records import LINGER_S
from tests.mcp.calling import Calls, allow

FULL_ACCESS = {"type": "danger-full-access"}
POLICIES = (None, FULL_ACCESS)


@pytest.fixture(params=POLICIES, ids=("sandboxed", "full-access"))
def policy(request: pytest.FixtureRequest) -> dict[str, str] | None:
    policy: dict[str, str] | None = request.param
    return policy


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("echo hi > >(cat -n)", "     1\thi\n"),
        ("exec > >(sed s/^/log:/) 2>&1; echo one; echo two >&2", "log:one\nlog:two\n"),
        ("(sleep .1; echo late) & echo now", "now\nlate\n"),
        ("(sleep .1; echo late >&2) & echo now", "now\nlate\n"),
    ],
)
def test_what_the_shells_own_redirections_still_write_is_kept(
    calls: Calls, policy: dict[str, str] | None, command: str, output: str
) -> None:
    result = calls.run(command, policy=policy)
    assert (result.exit_code, result.output) == (0, output)
    assert calls.left() == []


def test_a_program_outside_may_finish_its_output(calls: Calls, policy: dict[str, str] | None) -> None:
    script = calls.folder / "late"
    script.write_text("#!/bin/sh\nsleep .1\necho outside\n")
    script.chmod(0o755)
    result = calls.run("./late & echo now; exit 7", allow("late"), policy=policy)
    assert (result.exit_code, result.output) == (7, "now\noutside\n")
    assert calls.left() == []


def test_what_holds_an_output_for_longer_is_ended(calls: Calls, policy: dict[str, str] | None) -> None:
    begin = time.monotonic()
    result = calls.run("sleep 71 & setsid sleep 72 & echo bg; exit 3", allow("sleep", "72"), policy=policy)
    assert (result.exit_code, result.output) == (3, "bg\n")
    assert LINGER_S <= time.monotonic() - begin < 30
    assert calls.left() == []


def test_what_holds_no_output_is_ended_at_once(calls: Calls, policy: dict[str, str] | None) -> None:
    command = (
        "for n in 1 2 3 4 5 6 7 8; do sleep 73 </dev/null >/dev/null 2>&1 & done; sleep 74 >&- 2>&- & echo bg"
    )
    times = []
    for _ in range(8):
        begin = time.monotonic()
        assert calls.run(command, policy=policy).output == "bg\n"
        times.append(time.monotonic() - begin)
    # Each would take longer if it waited; on a busy machine some take longer anyway.
    assert min(times) < LINGER_S
    assert calls.left() == []


def test_a_call_can_be_cancelled_while_others_still_write(
    calls: Calls, policy: dict[str, str] | None
) -> None:
    cancelled = Event()
    command = "(touch begun; sleep 75; echo late) & echo now"
    write_here = policy or {"type": "workspace-write"}
    call = gevent.spawn(lambda: calls.run(command, policy=write_here, cancelled=cancelled))
    calls.wait_for((calls.folder / "begun").exists)
    cancelled.set()
    with pytest.raises(ToolError, match="the call was cancelled"):
        call.get(timeout=20)
    assert calls.left() == []


def test_who_goes_on_starting_others_is_ended_all_the_same(
    calls: Calls, policy: dict[str, str] | None
) -> None:
    chain = "f() { (sleep .05; f) & }; f; echo begun"
    result = calls.run(chain, policy=policy)
    assert result.output == "begun\n"
    assert calls.left() == []


def test_a_command_that_no_kernel_takes_is_an_error_and_no_denial(
    calls: Calls, policy: dict[str, str] | None
) -> None:
    longest = "#" * (32 * os.sysconf("SC_PAGE_SIZE") - 1)
    assert calls.run(longest, policy=policy).exit_code == 0
    with pytest.raises(ToolError) as caught:
        calls.run(longest + "#", policy=policy)
    assert (caught.value.code, caught.value.message) == (-32603, "Argument list too long (os error 7)")
