from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from execserver.zygote.reaper import own_children

ROOT = Path(__file__).parents[2]

# A grandchild that ignores what can be ignored and one that nobody waits for, each in a session of its own.
TREE = """
trap '' TERM HUP INT
setsid sh -c 'trap "" TERM HUP; echo $$ >>pids; setsid sh -c "echo \\$\\$ >>pids; sleep 60" & sleep 60' &
(setsid sh -c 'echo $$ >>pids; sleep 60' &)
echo $$ >>pids
sleep 60
"""


def run_alone(code: str, *arguments: str) -> str:
    """Run code that ends all children of its process."""
    prologue = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", prologue + code, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


def test_children_are_listed_zombies_included() -> None:
    with subprocess.Popen(["sleep", "60"]) as running:
        ended = subprocess.Popen(["true"])
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert {running.pid, ended.pid} <= set(own_children())
        running.kill()
        ended.wait()


def test_those_that_ended_are_reaped_and_the_others_not() -> None:
    code = """
import os, subprocess
from execserver.zygote.reaper import own_children, reap_ended
print(reap_ended())
first = subprocess.Popen(["sh", "-c", "exit 5"])
second = subprocess.Popen(["sleep", "60"])
os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
print([ended[:2] for ended in reap_ended()] == [(first.pid, 5 << 8)], own_children() == [second.pid])
second.kill()
first.returncode = second.wait()
"""
    assert run_alone(code) == "[]\nTrue True\n"


def test_every_descendant_is_ended(tmp_path: Path) -> None:
    code = """
import os, subprocess, sys, time
from execserver.zygote.libc import Libc
from execserver.zygote.reaper import end_all_children, own_children
Libc().set_child_subreaper()
os.chdir(sys.argv[2])
shell = subprocess.Popen(["sh", "-c", sys.argv[1]])
while not os.path.exists("pids") or len(open("pids").readlines()) < 4:
    time.sleep(0.001)
end_all_children()
shell.returncode = 0
print(own_children())
"""
    assert run_alone(code, TREE, str(tmp_path)) == "[]\n"
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 4
    assert [pid for pid in pids if Path("/proc", pid).exists()] == []


def test_children_are_found_where_the_kernel_does_not_list_them() -> None:
    code = """
import os, subprocess
from execserver.zygote import reaper
def missing(task):
    raise FileNotFoundError
reaper._children_of_task = missing
with subprocess.Popen(["sleep", "60"]) as child:
    print(reaper.own_children() == [child.pid])
    child.kill()
"""
    assert run_alone(code) == "True\n"


def test_a_process_without_children_has_nothing_to_reap() -> None:
    assert (
        run_alone("from execserver.zygote.reaper import *; end_all_children(); print(own_children())")
        == "[]\n"
    )
