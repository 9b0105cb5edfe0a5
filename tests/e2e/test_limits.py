"""Limits of processes on a real server: what holds, what is told, and who cannot hide from them.

What only all of cgroup v2 holds is played in a virtual machine (`tests/machines/test_limits.py`).
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.sandbox_places import Place
from tests.support.peer import Json, Message, Peer, RemoteError
from tests.support.running import event, output_until, run, start, terminate
from tests.support.sandboxes import workspace_write
from tests.support.server_process import OURS, ServerProcess, base_environment
from tests.support.waiting import wait_until

MIB = 1024 * 1024
BUSY = "while :; do :; done"


@pytest.fixture(scope="module")
def limits_server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


@pytest.fixture
def peer(limits_server: ServerProcess) -> Iterator[Peer]:
    with limits_server.connect() as peer:
        peer.open_session()
        yield peer


def exit_of(peer: Peer, process_id: str) -> Message:
    """Return the params of the exit of a process."""
    while (message := event(peer, process_id, 50))["method"] != "process/exited":
        pass
    params: Message = message["params"]
    return params


def end_of(peer: Peer, script: str, limits: Json, **members: Json) -> tuple[Json, Json]:
    """Run a script with limits to its exit; return `ended` and `usage`."""
    name = f"p{os.urandom(4).hex()}"
    start(peer, name, script, limits=limits, **members)
    found = exit_of(peer, name)
    return found["ended"], found["usage"]


def is_held(peer: Peer, name: str) -> bool:
    """Return whether the kernel holds one kind of limit here."""
    checks = peer.call("environment/sandbox")["checks"]
    return any(check["name"] == f"limit-{name}" and check["works"] for check in checks)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def told(ended: Json) -> tuple[str, str | None, str | None, int | None]:
    return ended["cause"], ended["limit"], ended["scope"], ended["value"]


def test_why_a_process_ended_is_told_with_proof(peer: Peer) -> None:
    ended, usage = end_of(peer, BUSY, {"cpuMs": 1000})
    assert told(ended) == ("limit", "cpuMs", "process", 1000)
    assert ended["text"].startswith("ended because its CPU time limit of 1 s was reached (used ")
    # By the ticks of the rlimit, which on a busy machine run ahead of the time told (`core/process_end`).
    assert 500 <= usage["cpuMs"] < 5000
    ended, _ = end_of(peer, "sleep 60", {"wallMs": 200})
    assert (*told(ended), ended["text"]) == (
        *("deadline", "wallMs", "process", 200),
        "ended because its time of 200 ms was over",
    )
    ended, _ = end_of(peer, "exec head -c 9000 /dev/zero > $TARGET", {"fileBytes": 4096}, env=target())
    assert told(ended) == ("limit", "fileBytes", "process", 4096)


def target() -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "TARGET": "/dev/shm/execserver-limits-test"}


@pytest.fixture(autouse=True)
def no_target_left() -> Iterator[None]:
    yield
    Path(target()["TARGET"]).unlink(missing_ok=True)


def test_who_lies_about_its_end_is_not_believed(peer: Peer) -> None:
    all_limits = {"cpuMs": 60_000, "wallMs": 60_000}
    assert end_of(peer, "exit 137", all_limits)[0] is None
    for number in ("KILL", "XCPU"):
        ended, _ = end_of(peer, f"kill -{number} $$", all_limits)
        assert told(ended) == ("signal", None, None, None)
        assert ended["text"].endswith("which this server did not send")


def test_signals_of_clients_are_known(peer: Peer) -> None:
    for name in ("s", "t"):
        start(peer, name, "echo on; exec sleep 60", limits={})
        output_until(peer, name, b"on")
    peer.call("process/signal", {"processId": "s", "signal": "term"})
    assert exit_of(peer, "s")["ended"]["text"] == "ended by signal 15 (SIGTERM) of a client"
    assert terminate(peer, "t")
    assert exit_of(peer, "t")["ended"]["text"] == "ended by this server, as it was asked to"


def test_who_did_not_ask_is_told_as_the_contract_has_it(peer: Peer) -> None:
    for name, more in (("p", {}), ("q", {"limits": None})):
        assert start(peer, name, "kill -9 $$", **more) == {"processId": name, "sandboxType": "none"}
        assert set(exit_of(peer, name)) == {"processId", "seq", "exitCode", "sandboxDenied"}
        found = peer.call("process/read", {"processId": name})
        assert not {"ended", "usage"} & set(found)


def test_the_end_is_read_and_listed_too(peer: Peer) -> None:
    start(peer, "p", "kill -9 $$", limits={})
    gone = exit_of(peer, "p")
    read = peer.call("process/read", {"processId": "p"})
    (entry,) = peer.call("process/list")["processes"]
    for found in (read, entry):
        assert (found["ended"], found["usage"]) == (gone["ended"], gone["usage"])


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"memoryBytes": 0}, "limits.memoryBytes must be between 8388608 and 9007199254740992, got 0"),
        ({"memoryBytes": 8 * MIB - 1}, "must be between 8388608 and 9007199254740992, got 8388607"),
        ({"wallMs": -1}, "limits.wallMs must be between 1 and 31622400000, got -1"),
        ({"openFiles": 3}, "limits.openFiles must be between 16 and 1048576, got 3"),
        ({"cpuPercent": 2**62}, "limits.cpuPercent must be between 1 and 1000000, got"),
        ({"processes": "many"}, 'invalid type: string "many", expected i64 (in `limits.processes`)'),
        ({"enforce": "please"}, "unknown variant `please`, expected `kernel` or `best`"),
    ],
)
def test_a_bad_value_is_refused_with_its_bounds(peer: Peer, limits: Json, text: str) -> None:
    with pytest.raises(RemoteError) as refused:
        start(peer, "p", "true", limits=limits)
    assert refused.value.code == -32602
    assert text in refused.value.message
    assert run(peer, "p", "echo on").stdout == b"on\n"  # the id is free


@pytest.mark.parametrize(
    ("name", "limits"),
    [("memory", {"memoryBytes": 64 * MIB}), ("processes", {"processes": 5}), ("cpu", {"cpuPercent": 50})],
)
def test_what_nothing_holds_here_is_refused_with_the_cure(peer: Peer, name: str, limits: Json) -> None:
    if is_held(peer, name):
        assert set(start(peer, "p", "true", limits=limits)["enforced"].values()) == {"kernel"}
        return
    with pytest.raises(RemoteError) as refused:
        start(peer, "p", "true", limits=limits)
    assert refused.value.code == -32600
    assert f"limits.{next(iter(limits))} cannot be enforced here: " in refused.value.message
    assert "(cure: " in refused.value.message
    best = start(peer, "p", "true", limits={**limits, "enforce": "best"})["enforced"]
    assert best == {next(iter(limits)): "none" if name == "cpu" else "sampled"}


def test_what_is_sampled_ends_above_its_limit_with_all_it_started(peer: Peer) -> None:
    # All of it at once: a shell that gathers as much in a variable reads for seconds on a busy machine.
    hungry = f"{shlex.quote(sys.executable)} -S -c 'import time; held = b\"x\" * 60_000_000; time.sleep(60)'"
    # The parent does not wait, so nothing but the look tells what the child used.
    ended, usage = end_of(peer, f"({hungry}) & exec sleep 60", {"memoryBytes": 32 * MIB, "enforce": "best"})
    assert told(ended) == ("limit", "memoryBytes", "process", 32 * MIB)
    assert usage["peakBytes"] >= 32 * MIB
    if not is_held(peer, "processes"):
        many = "for i in 1 2 3 4 5 6; do sleep 60 & done; wait"
        ended, _ = end_of(peer, many, {"processes": 4, "enforce": "best"})
        assert told(ended) == ("limit", "processes", "process", 4)


def test_nobody_hides_from_the_time_of_a_process(peer: Peer) -> None:
    # In another session, and with a parent that has ended; so the shell itself ends at once.
    # The parent stays for some looks: without a group, what was never seen below it is not known.
    script = "setsid sh -c 'sleep 300 & echo $!; sleep 300 & echo $!; sleep 2.1' & sleep 2; echo over"
    start(peer, "p", script, limits={"wallMs": 6_000})
    lines = output_until(peer, "p", b"over").split()
    left = [int(word) for word in lines if word.isdigit()]
    assert len(left) == 2
    assert exit_of(peer, "p")["exitCode"] == 0
    wait_until(lambda: all(is_gone(pid) for pid in left), 20)


def test_a_terminated_process_takes_all_along_that_it_started(peer: Peer) -> None:
    start(peer, "p", "setsid sleep 300 & echo $!; echo on; wait", limits={"wallMs": 60_000})
    first = int(output_until(peer, "p", b"on").split()[0])
    assert terminate(peer, "p")
    assert exit_of(peer, "p")["exitCode"] == 137
    wait_until(lambda: is_gone(first), 20)


def test_a_process_has_its_open_files_and_no_more(peer: Peer) -> None:
    script = "ulimit -n; for i in 1 2 3; do sh -c 'ulimit -n'; done; echo fine"
    assert run(peer, "p", script, limits={"openFiles": 64}).stdout == b"64\n" * 4 + b"fine\n"
    assert run(peer, "t", "ulimit -n; tty", tty=True, limits={"openFiles": 64}).pty.startswith(b"64\r\n/dev/")


def test_a_program_that_is_not_there_is_the_contracts_error(peer: Peer) -> None:
    with pytest.raises(RemoteError, match=r"No such file or directory \(os error 2\)"):
        start(peer, "p", ["/no/such/program"], limits={"wallMs": 1000})


def test_children_are_preferred_by_the_oom_killer(peer: Peer, limits_server: ServerProcess) -> None:
    own = int(Path(f"/proc/{limits_server.pid}/oom_score_adj").read_text())
    for name, more in (("p", {}), ("q", {"limits": {"wallMs": 60_000}}), ("r", {"tty": True})):
        found = run(peer, name, "cat /proc/self/oom_score_adj", **more)
        assert int(found.stdout or found.pty) == min(own + 500, 1000)


@pytest.mark.ours_only("the reference has no limits")
def test_limits_hold_in_a_sandbox_which_cannot_write_the_control_groups(place: Place) -> None:
    name = place.begin(
        "ulimit -n; sleep 60", workspace_write(place.ws), limits={"wallMs": 5_000, "openFiles": 64}
    )
    assert output_until(place.peer, name, b"\n") == b"64\n"
    ended = exit_of(place.peer, name)["ended"]
    assert told(ended) == ("deadline", "wallMs", "process", 5_000)
    escape = (
        "for f in $(find /sys/fs/cgroup -name cgroup.procs 2>/dev/null); do echo $$ > $f && echo OUT; done"
    )
    assert b"OUT" not in place.run(escape, workspace_write(place.ws), limits={"wallMs": 30_000}).stdout


TAKES = """
import ctypes, sys
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
print([libc.ptrace(request, pid, None, None) for request in (PTRACE_ATTACH, PTRACE_SEIZE)])
try:
    open(f"/proc/{pid}/mem", "r+b")
    print("memory")
except OSError:
    print("held", flush=True)
while True: pass
"""


@pytest.mark.ours_only("the reference has no limits")
def test_no_limited_process_works_on_in_another_one_that_has_no_limits(place: Place) -> None:
    """By ptrace of a sibling of the same user: its time would be nobody's."""
    sibling = start_of(place.peer, "sibling", "echo $$; exec sleep 60")
    name = place.begin(
        [sys.executable, "-c", TAKES, str(sibling)], workspace_write(place.ws), limits={"wallMs": 5_000}
    )
    assert output_until(place.peer, name, b"held\n") == b"[-1, -1]\nheld\n"
    assert told(exit_of(place.peer, name)["ended"]) == ("deadline", "wallMs", "process", 5_000)
    assert "TracerPid:\t0" in Path(f"/proc/{sibling}/status").read_text()
    assert terminate(place.peer, "sibling")


def start_of(peer: Peer, name: str, script: str) -> int:
    """Start a script that says its pid first; return that."""
    start(peer, name, script)
    return int(output_until(peer, name, b"\n"))


def test_a_process_has_its_share_of_the_cpu_with_all_it_starts(peer: Peer) -> None:
    if not is_held(peer, "cpu"):
        pytest.skip("no cpu controller of cgroup v2 is delegated here")
    script = f"({BUSY}) & ({BUSY}) & setsid sh -c '{BUSY}' & wait"
    ended, usage = end_of(peer, script, {"cpuPercent": 20, "wallMs": 3_000})
    assert told(ended) == ("deadline", "wallMs", "process", 3_000)
    assert 100 <= usage["cpuMs"] <= 1_200  # of 3,000 at least: 600, and what a busy machine is late


def test_the_servers_limits_are_for_every_process_and_the_most_a_client_gets() -> None:
    options = ("--limit-process", "time=5s", "--limit-process=open-files=70")
    with ServerProcess(options=options) as server, server.connect() as peer:
        peer.open_session()
        start(peer, "p", "ulimit -n; sleep 60")
        assert output_until(peer, "p", b"\n") == b"70\n"
        found = exit_of(peer, "p")
        assert (found["exitCode"], "ended" in found) == (128 + signal.SIGKILL, False)
        with pytest.raises(RemoteError, match=r"limits\.openFiles must be between 16 and 70, got 71"):
            start(peer, "q", "true", limits={"openFiles": 71})
        ended, _ = end_of(peer, "sleep 60", {"openFiles": 60})
        assert told(ended) == ("deadline", "wallMs", "process", 5_000)


@pytest.mark.parametrize("whose", ["session", "process"])
def test_limits_of_the_command_line_that_nothing_holds_are_told_in_its_words(peer: Peer, whose: str) -> None:
    if is_held(peer, "memory"):
        pytest.skip("the memory controller of cgroup v2 is delegated here")
    refused = subprocess.run(
        [*OURS.argv, "--listen", "ws://127.0.0.1:0", f"--limit-{whose}", "memory=4G"],
        env=base_environment(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"Error: --limit-{whose} memory cannot be enforced here: ")
    assert ("--limit-process enforce=best" in refused.stderr) == (whose == "process")


def test_nothing_is_left_of_the_groups(limits_server: ServerProcess) -> None:
    with ServerProcess() as server, server.connect() as peer:
        peer.open_session()
        start(
            peer,
            "p",
            "grep ^0: /proc/self/cgroup; setsid sleep 300 & echo $!; echo on",
            limits={"wallMs": 60_000},
        )
        seen = output_until(peer, "p", b"on").decode()
        exit_of(peer, "p")
        if "execserver." not in seen:
            pytest.skip("no control groups here")
    left = [str(path) for path in Path("/sys/fs/cgroup").rglob(f"execserver.{server.pid}")]
    assert left == []
