"""What a program outside inherits: as much as one inside, and never more than who asked for it."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from execserver.zygote.confinement import LANDLOCK, NATIVE
from tests.support.source import ROOT
from tests.zygote.python_inside import python
from tests.zygote.supervised import FULL_ACCESS, PLACES, Supervised, allow

CPUS = sorted(os.sched_getaffinity(0))
# What a process sets for itself before it executes a program; the names are those of the table in the docs.
HANDED_ON = {
    "niceness": "os.nice(3)",
    "processors": f"os.sched_setaffinity(0, {{{CPUS[-1]}}})",
    "scheduling policy": "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)); os.nice(2)",
    "scheduling policy, idle": "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))",
    "I/O priority": "ioprio_set(2 << 13 | 6)",
    "I/O priority, idle": "ioprio_set(3 << 13)",
    "ignored signals": "ignore(signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM, 40)",
    "ignored signals, those that the supervisor awaits": "ignore(signal.SIGTERM, signal.SIGCHLD)",
    "blocked signals": "signal.pthread_sigmask(0, [signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR2, 50])",
    "umask": "os.umask(0o077)",
    "all at once": "os.nice(1); ignore(15); signal.pthread_sigmask(0, [10]); ioprio_set(3 << 13); "
    "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
}
OOM = "open('/proc/self/oom_score_adj', 'w').write('700')"
HEAD = """
import json, resource
def ioprio_set(value):
    assert call(251, 1, 0, value) == 0
def ignore(*numbers):
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
def told(prepare, *words):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            exec(prepare)
            os.dup2(writer, 1)
            os.execv(words[0], words)
        except Exception as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(99)
    os.close(writer)
    text = open(reader).read()
    os.waitpid(pid, 0)
    return text
def values(text):
    lines = text.splitlines()
    wanted = ("NoNewPrivs", "SigIgn", "SigBlk", "Umask", "Cpus_allowed", "Uid", "CapBnd")
    pairs = (line.partition(":") for line in lines)
    found = {name: value.strip() for name, _, value in pairs if name in wanted}
    if found:
        fields = lines[-2].rpartition(")")[2].split()
        found |= {"nice": fields[16], "priority": fields[37], "policy": fields[38], "oom": lines[-1]}
    return found or text
def seen(prepare):
    own = "/proc/self/"
    found = values(told(prepare, "/bin/cat", own + "status", own + "stat", own + "oom_score_adj"))
    return [found, told(prepare, "/usr/bin/ionice") if os.path.exists("/usr/bin/ionice") else ""]
"""
RULES = allow("cat"), allow("ionice")


def seen(zygote: Supervised, prepared: dict[str, str], *rules: Any, **options: Any) -> dict[str, Any]:
    """Return what a program tells of itself, by what was set before."""
    code = f"{HEAD}\nprint(json.dumps({{name: seen(text) for name, text in {prepared!r}.items()}}))"
    status, out, err = zygote.call(python(code), *rules, **options)
    assert (status, err) == (0, "")
    return dict(json.loads(out))


def is_inside(found: Any) -> bool:
    return bool(found[0]["NoNewPrivs"] == "1")


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(place, marks=() if place in (NATIVE, FULL_ACCESS) else pytest.mark.long)
        for place in PLACES
    ],
)
def test_a_program_outside_is_what_it_would_be_inside(zygote: Supervised, place: str) -> None:
    outside = seen(zygote, HANDED_ON, *RULES, place=place)
    inside = seen(zygote, HANDED_ON, place=place)
    assert {name for name in HANDED_ON if is_inside(outside[name])} == set()
    for found in (*outside.values(), *inside.values()):
        for name in ("NoNewPrivs", "Uid", "CapBnd"):
            del found[0][name]
    assert outside == inside


@pytest.mark.parametrize("place", [NATIVE, FULL_ACCESS])
def test_who_is_killed_first_stays_so(zygote: Supervised, user: int, place: str) -> None:
    found = seen(zygote, {"": OOM}, *RULES, place=place)[""]
    assert found[0]["oom"] == "700"
    # To an ordinary user the supervisor's own entries in /proc are closed.
    assert is_inside(found) is not (user == 0 and os.access("/proc/self/oom_score_adj", os.W_OK))


def test_a_score_below_the_supervisors_is_not_handed_on(zygote: Supervised, user: int) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    if user or own < -999:
        pytest.skip("nobody here can lower it")
    lowered = {"": OOM.replace("700", str(own - 1))}
    found = seen(zygote, lowered, *RULES, place=FULL_ACCESS)[""]
    if not isinstance(found[0], dict):
        pytest.skip(f"root may not lower it here: {found[0]}")
    # The supervisor's is that of all that the zygote starts.
    assert (found[0]["oom"], is_inside(found)) == (str(min(own + 500, 1000)), False)


# What a program outside would not have, or have again: these programs run inside.
GIVEN_UP = {
    "user": "os.setgroups([]); os.setgid(65534); os.setuid(65534)",
    "groups": "os.setgroups([1])",
    "capabilities": "assert libc.prctl(24, 21, 0, 0, 0) == 0",
    "network namespace": "assert call(272, 0x40000000) == 0",
    "mount namespace": "assert call(272, 0x00020000) == 0",
    "host name namespace": "assert call(272, 0x04000000) == 0",
    "pid namespace of its children": "assert call(272, 0x20000000) == 0",
    "deadline": "assert call(314, 0, struct.pack('=IIQiIQQQ', 48, 6, 0, 0, 0, 10**7, 10**8, 10**8), 0) == 0",
}
# Namespaces that are made with a new user namespace, and the flags of both.
MADE = {
    "none other": 0x10000000,
    "network": 0x50000000,
    "mounts": 0x10020000,
    "host name": 0x14000000,
    "processes of its children": 0x30000000,
    "time of its children": 0x10000080,
}
LIMITED = {
    "file size": "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))",
    "processor time": "resource.setrlimit(resource.RLIMIT_CPU, (600, 600))",
    "few open files": "resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))",
}


def test_who_has_given_something_up_gets_it_back_nowhere(zygote: Supervised, user: int) -> None:
    prepared = dict(LIMITED)
    if user == 0:
        prepared |= GIVEN_UP
    else:
        prepared["user namespace"] = "assert call(272, 0x10000000) == 0"
    found = seen(zygote, prepared, *RULES, place=FULL_ACCESS)
    refused = {name for name, (told, _) in found.items() if not isinstance(told, dict)}
    assert refused <= {*GIVEN_UP, "user namespace"}  # what this machine does not let anybody do
    assert {name for name in prepared if name not in refused and not is_inside(found[name])} == set()


@pytest.mark.parametrize("place", [NATIVE, LANDLOCK, FULL_ACCESS])
def test_who_has_made_namespaces_with_a_user_namespace_leaves_none_of_them(
    zygote: Supervised, place: str
) -> None:
    # Without the capabilities that it has there, it looks like one that has made none.
    drop = "[libc.prctl(24, number, 0, 0, 0) for number in range(41)]"
    prepared = {name: f"assert call(272, {hex(flag)}) == 0; {drop}" for name, flag in MADE.items()}
    found = seen(zygote, {**prepared, "none": ""}, *RULES, place=place)
    assert not is_inside(found.pop("none"))
    made = [one for one in found.values() if isinstance(one[0], dict)]
    if not made:
        pytest.skip("no user namespace can be made there")
    assert all(map(is_inside, made))


def test_another_control_group_is_left_by_nobody(zygote: Supervised, user: int, tmp_path: Path) -> None:
    group = Path(f"/sys/fs/cgroup/freezer/{tmp_path.name}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    try:
        if user:
            pytest.skip("only root may enter it")
        enter = f"open('{group}/cgroup.procs', 'w').write('0')"
        assert is_inside(seen(zygote, {"": enter}, *RULES, place=FULL_ACCESS)[""])
    finally:
        group.rmdir()


@pytest.mark.parametrize("place", [NATIVE, LANDLOCK, FULL_ACCESS])
def test_limits_that_end_nobody_halfway_are_the_programs(zygote: Supervised, place: str) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 1024:
        pytest.skip(f"the hard limit of open files here is {hard}")
    limits = "[resource.setrlimit(n, (m, m)) for n, m in ((7, 300), (8, 0), (12, 0), (13, 0))]"
    code = f'{HEAD}\nprint(told("""{limits}""", "/bin/cat", "/proc/self/status", "/proc/self/limits"))'
    _, out, err = zygote.call(python(code), *RULES, place=place)
    told = {line[:26].strip(): line[26:].split() for line in out.splitlines()}
    assert "NoNewPrivs:\t0" in out, err
    names = "Max open files", "Max locked memory", "Max msgqueue size", "Max nice priority"
    assert [told[name][:2] for name in names] == [["300", "300"], *[["0", "0"]] * 3]


def test_core_limits_and_soft_limits_keep_nobody_inside(zygote: Supervised) -> None:
    soft = "resource.setrlimit(resource.RLIMIT_NOFILE, (99, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))"
    prepared = {"core": "resource.setrlimit(4, (0, 0))", "soft": soft}
    assert not any(map(is_inside, seen(zygote, prepared, *RULES).values()))


def test_real_time_priority_is_handed_on_or_its_program_runs_inside(zygote: Supervised) -> None:
    fifo = {"": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))"}
    found = seen(zygote, fifo, *RULES, place=FULL_ACCESS)[""]
    if not isinstance(found[0], dict):
        pytest.skip(f"nobody gets real-time priority here: {found[0]}")
    assert (found[0]["policy"], found[0]["priority"]) == ("1", "1")


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
def test_no_program_ever_runs_before_it_is_what_it_shall_be(zygote: Supervised, place: str) -> None:
    script = "for n in $(seq 300); do nice -n 5 nice; done | sort | uniq -c"
    _, out, _ = zygote.call(script, allow("nice"), place=place)
    assert out.split() == ["300", str(min(19, os.nice(0) + 5))]


def test_the_page_says_what_is_handed_on() -> None:
    page = (ROOT / "docs/shell-tool.md").read_text("utf-8")
    section = page.split("### What it inherits\n")[1].split("\n### ")[0]
    rows = {line.split(" | ")[0].strip("| ") for line in section.splitlines() if line.startswith("| ")}
    tested = {name.partition(",")[0] for name in HANDED_ON} - {"all at once"}
    tested |= {"user, groups, capabilities", "namespaces", "control group", "limits", "OOM score"}
    tested |= {"controlling terminal", "seccomp filters of its own"}
    assert rows - {"", "what"} == tested
