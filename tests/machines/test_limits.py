"""Limits with all of cgroup v2, which few machines for tests have: the one file in a virtual machine.

The server there is root in the root of all groups, on stdio.  What it says comes back over the console.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.machines import system
from tests.machines.initramfs import file
from tests.machines.machine import Machine, Outcome, run
from tests.machines.virtual import PROGRAM, machine_with
from tests.support.peer import Json
from tests.support.sandboxes import read_only

pytestmark = pytest.mark.long

MIB = 1024 * 1024
EATS = "dd if=/dev/zero of=/dev/null bs={} count=1; sleep 100"  # its buffer, in no time
# Feeds the requests in parts, and waits until all processes of a part have closed.
SCRIPT = """
feed() {{
    for part in /root/part*; do
        cat $part
        tries=0
        wanted=$(cat /root/sum${{part#/root/part}})
        until [ "$(grep -c '"process/closed"' /run/out)" -ge "$wanted" ] || [ $tries -gt 300 ]; do
            sleep 0.2
            tries=$((tries+1))
        done
    done
}}
/root/execserver --version
/root/execserver doctor | grep -E 'control-groups|limit-'
: > /run/out
feed | /root/execserver --listen stdio {options} > /run/out 2>/run/err
cat /run/out
tail -n 3 /run/err
find /sys/fs/cgroup -mindepth 1 -type d
"""


class Play(NamedTuple):
    """A command, its limits, and what is to be told: cause, limit, scope; None for an exit of its own."""

    script: str
    limits: Json
    expected: tuple[str, str | None, str | None] | None
    sandbox: Json = None


HUNGRY = Play(EATS.format(24 * MIB), {"memoryBytes": 16 * MIB}, ("limit", "memoryBytes", "process"))
FAMILY = Play(
    f"(sleep 100 & sleep 100 & {EATS.format(24 * MIB)}); echo survived; sleep 100",
    {"memoryBytes": 16 * MIB},
    ("limit", "memoryBytes", "process"),
)
HIDDEN = Play(
    f"setsid sh -c '({EATS.format(24 * MIB)}) &'; sleep 100",
    {"memoryBytes": 16 * MIB},
    ("limit", "memoryBytes", "process"),
)
LIAR = Play("exit 137", {"memoryBytes": 16 * MIB}, None)
SUICIDE = Play("kill -9 $$", {"memoryBytes": 16 * MIB}, ("signal", None, None))
LATE = Play("sleep 100", {"wallMs": 300}, ("deadline", "wallMs", "process"))
BUSY = Play("while :; do :; done", {"cpuMs": 200}, ("limit", "cpuMs", "process"))
SPIN = Play(BUSY.script, {"wallMs": 4_000}, ("deadline", "wallMs", "process"))
PERIOD_MS = 100  # of the kernel's shares: in each one begun, all of a share may have been used
LATE_MS = 1_000  # a busy emulator begins and ends a process so much later
BOMB = Play("f() { f | f & }; f; sleep 1; exit 5", {"processes": 12, "wallMs": 5_000}, None)
HUGE = Play(
    f"(sleep 100 & {EATS.format(900 * MIB)})", {"memoryBytes": 4096 * MIB}, ("machineMemory", None, None)
)
GREEDY = Play(EATS.format(400 * MIB), {"memoryBytes": 512 * MIB}, ("limit", "memoryBytes", "session"))


@pytest.fixture(scope="module")
def machine() -> Machine:
    return machine_with(lambda: system.system("x86_64"), memory_mib=1024)[0]


def requests(plays: Iterable[Play]) -> Iterator[Json]:
    yield {"id": "i", "method": "initialize", "params": {"clientName": "test"}}
    yield {"method": "initialized", "params": {}}
    for number, play in enumerate(plays):
        params = {
            "processId": f"p{number}",
            "argv": ["sh", "-c", play.script],
            "cwd": "file:///",
            "env": {"PATH": "/usr/bin:/bin"},
            "tty": False,
            "limits": play.limits,
            "sandbox": play.sandbox,
        }
        yield {"id": number, "method": "process/start", "params": params}


def played(
    machine: Machine, plays: list[Play], part: int, options: str = "", limit_s: float = 240
) -> list[Json]:
    """Have all plays made, so many at a time; return the exits in the order of the plays."""
    lines = [json.dumps(request) + "\n" for request in requests(plays)]
    head, rest = "".join(lines[:2]), lines[2:]
    files = {**system.system("x86_64"), "root/execserver": file(PROGRAM.read_bytes(), 0o755)}
    for number, start in enumerate(range(0, len(rest), part)):
        text = ("" if start else head) + "".join(rest[start : start + part])
        files[f"root/part{number:04}"] = file(text.encode())
        files[f"root/sum{number:04}"] = file(str(min(start + part, len(rest))).encode())
    outcome = run(machine, files, SCRIPT.format(options=options), limit_s=limit_s)
    exits = exits_of(outcome)
    missing = [number for number in range(len(plays)) if f"p{number}" not in exits]
    assert not missing, (missing, outcome.lines[-20:])
    assert not [line for line in outcome.lines if line.startswith("/sys/fs/cgroup/")]  # nothing is left
    return [exits[f"p{number}"] for number in range(len(plays))]


def exits_of(outcome: Outcome) -> dict[str, Json]:
    found = {}
    for line in outcome.lines:
        if line.startswith('{"method":"process/exited"'):
            params = json.loads(line)["params"]
            found[params["processId"]] = params
    return found


def told(exited: Json) -> tuple[str, str | None, str | None] | None:
    ended = exited["ended"]
    return None if ended is None else (ended["cause"], ended["limit"], ended["scope"])


def test_each_limit_holds_and_names_itself(machine: Machine) -> None:
    plays = [HUNGRY, FAMILY, HIDDEN, LIAR, SUICIDE, LATE, BUSY, BOMB, GREEDY]
    exits = played(machine, plays, 1, "--limit-session memory=256M")
    assert [told(each) for each in exits] == [play.expected for play in plays]
    texts = [each["ended"]["text"] for each in exits if each["ended"]]
    assert texts[1] == "ended because its memory limit of 16 MiB was reached (peak 16 MiB, 6 processes)"
    assert [each["usage"]["complete"] for each in exits[:6]] == [True] * 6
    assert exits[0]["usage"]["peakBytes"] == 16 * MIB
    assert exits[7]["exitCode"] in (2, 5)  # 2: not even its own `sleep` could be forked


def test_the_machines_own_memory_is_told_apart_and_the_server_outlives_it(machine: Machine) -> None:
    """No group is at its limit: the kernel takes memory from whom it likes least, and from all of that."""
    plays = [HUGE, HUNGRY, LIAR, HUGE._replace(sandbox=read_only(Path("/"))), HUNGRY]
    exits = played(machine, plays, 1)
    assert [told(each) for each in exits] == [play.expected for play in plays]
    text = r"ended because the machine was out of memory \(peak [\d.]+ MiB, [2-9] processes\)"
    assert all(re.fullmatch(text, exits[number]["ended"]["text"]) for number in (0, 3)), exits


def test_a_sandbox_is_in_its_group_and_cannot_leave_it(machine: Machine) -> None:
    out = "for f in $(find /sys/fs/cgroup -name cgroup.procs); do echo $$ > $f && exit 9; done; exit 3"
    sandbox = read_only(Path("/"))
    plays = [HUNGRY._replace(sandbox=sandbox), Play(out, {"memoryBytes": 64 * MIB}, None, sandbox)]
    exits = played(machine, plays, 1)
    assert told(exits[0]) == HUNGRY.expected
    assert exits[1]["exitCode"] == 3


def test_a_share_of_the_cpu_holds_for_all_that_is_started(machine: Machine) -> None:
    share = {**SPIN.limits, "cpuPercent": 20}
    many = f"for i in 1 2 3; do setsid sh -c '{SPIN.script}' & done; {SPIN.script}"
    plays = [SPIN, SPIN._replace(limits=share), SPIN._replace(limits=share, script=many)]
    plays.append(plays[1]._replace(sandbox=read_only(Path("/"))))
    exits = played(machine, plays, 1)
    assert [told(each) for each in exits] == [SPIN.expected] * 4
    free, *held = (each["usage"]["cpuMs"] for each in exits)
    most = (SPIN.limits["wallMs"] + LATE_MS + 2 * PERIOD_MS) * 20 // 100
    assert all(400 <= each <= most for each in held), (held, most)
    assert free > 2 * most  # so it is the share that has held the others back


def test_a_session_shares_its_part_of_the_cpu(machine: Machine) -> None:
    exits = played(machine, [SPIN, SPIN], 2, "--limit-session cpu=30%")
    used = [each["usage"]["cpuMs"] for each in exits]
    assert sum(used) <= (SPIN.limits["wallMs"] + LATE_MS + 3 * PERIOD_MS) * 30 // 100
    assert min(used) >= 300  # neither starves the other


def test_the_cause_is_right_a_thousand_times(machine: Machine) -> None:
    chance = random.Random(21)
    kinds = [HUNGRY, FAMILY, LIAR, SUICIDE, LATE, BUSY]
    plays = chance.choices(kinds, weights=[3, 1, 5, 5, 5, 1], k=1000)
    exits = played(machine, plays, 10, limit_s=880)
    wrong = [
        (number, play.script, each["ended"])
        for number, (play, each) in enumerate(zip(plays, exits, strict=True))
        if told(each) != play.expected
    ]
    assert wrong == []
