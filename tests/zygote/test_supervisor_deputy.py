"""What a hostile caller hands over must not turn a program outside, nor the supervisor, against anybody."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import signal as signals
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from execserver.rules.policy import Policy, Rule
from execserver.rules.policy_record import encode_policy
from execserver.zygote.confinement import BUBBLEWRAP, LANDLOCK, NATIVE
from execserver.zygote.supervision.records import ACCEPT, NOTIFY, WRAPPER, Question, Supervision
from execserver.zygote.supervision.trap.process_files import MOST_OPEN
from tests.support.compiled_wrapper import compile_wrapper
from tests.support.opened import open_python, open_source
from tests.zygote.harness import PATH
from tests.zygote.supervised import (
    Supervised,
    allow,
    forbid,
    prompt,
)

PRIVILEGES = "NoNewPrivs: /proc/self/status"
INSIDE, OUTSIDE = "NoNewPrivs:\t1\n", "NoNewPrivs:\t0\n"
DENIED = "Execution denied: Execution forbidden by policy\n"
# Runs a program that is forbidden with a descriptor as its stderr, and says how it ended.
WITH_STDERR = """
import os, sys
def denied(descriptor):
    pid = os.fork()
    if pid == 0:
        os.dup2(descriptor, 2)
        os.execv("/usr/bin/uname", ["uname"])
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
PYTHON = "exec python3 -I -S - <<'THE END'\n{}\nTHE END\n"


@pytest.fixture(autouse=True)
def open_to_all(tmp_path: Path) -> None:
    """Let everybody write to the temporary folder, programs outside included."""
    tmp_path.chmod(0o777)


class Way:
    """How programs come to the supervisor: by the kernel, or by a wrapper in one of its two languages."""

    def __init__(self, zygote: Supervised, wrapper: list[str]) -> None:
        self._zygote = zygote
        self.wrapper = shlex.join(wrapper)

    def exec(self, path: str, arguments: str = "", name: str | None = None) -> str:
        """Return the end of a script that becomes a program under a name."""
        name = os.path.basename(path) if name is None else name
        if self.wrapper:
            return f"exec {self.wrapper} {path} {shlex.quote(name)} {arguments}"
        return f"exec -a {shlex.quote(name)} {path} {arguments}"

    def call(
        self, script: str, *rules: Rule, answer: Callable[[Question], int] | None = None, place: str = NATIVE
    ) -> tuple[int, str, str]:
        """Run a shell to its end; return its exit code, output and errors."""
        way = WRAPPER if self.wrapper else NOTIFY
        supervision = Supervision(encode_policy(Policy(rules)), False, way, b"/none", [PATH])
        with self._zygote.shell(script, place=place, supervision=supervision) as shell:
            return shell.end(answer), shell.out, shell.err


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wrapper that the one file is."""
    found = compile_wrapper(tmp_path_factory.mktemp("compiled"))
    if found is None:
        pytest.skip("there is no C compiler on this machine")
    return found


@pytest.fixture(params=["notified", "python", "compiled"])
def way(request: pytest.FixtureRequest, zygote: Supervised, user: int, tmp_path: Path) -> Way:
    """Every way."""
    if request.param == "compiled":
        return Way(
            zygote, [str(shutil.copy(request.getfixturevalue("compiled"), tmp_path / "codex-execve-wrapper"))]
        )
    if request.param == "python":
        program = str(open_source() / "execserver" / "__main__.py")
        return Way(zygote, [open_python(), "-I", "-S", program, "codex-execve-wrapper"])
    return Way(zygote, [])


def victim(folder: Path, name: str = "victim") -> Path:
    """Return a file that everybody outside may write, and nobody inside."""
    path = folder / name
    path.write_text("kept\n")
    path.chmod(0o666)
    return path


@pytest.mark.parametrize("place", [NATIVE, BUBBLEWRAP, LANDLOCK])
@pytest.mark.parametrize("flags", ["O_PATH", "O_RDONLY|os.O_NONBLOCK"])
def test_a_refusal_is_written_where_the_caller_itself_could_write(
    zygote: Supervised, tmp_path: Path, place: str, flags: str
) -> None:
    fifo, file = tmp_path / "fifo", victim(tmp_path)
    os.mkfifo(fifo)
    fifo.chmod(0o666)
    reader = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        code = f'for name in ("{fifo}", "{file}"): print(denied(os.open(name, os.{flags})), flush=True)'
        called = zygote.call(PYTHON.format(WITH_STDERR + code), forbid("uname"), place=place)
        assert called == (0, "1\n1\n", "")
        with pytest.raises(BlockingIOError):
            os.read(reader, 100)
    finally:
        os.close(reader)
    assert file.read_text() == "kept\n"


def test_a_refusal_leaves_the_flags_of_the_callers_stderr_alone(zygote: Supervised) -> None:
    code = """
    reader, writer = os.pipe()
    print(denied(writer), os.get_blocking(writer), os.read(reader, 100).decode(), end="")
    """
    script = PYTHON.format(WITH_STDERR + code.replace("\n    ", "\n"))
    assert zygote.call(script, forbid("uname")) == (0, f"1 True {DENIED}", "")


def test_a_stderr_that_never_takes_anything_holds_nobody_up(zygote: Supervised) -> None:
    # It says that it can be written to, and then waits for the counter to have room for eight letters.
    code = """
    full = [os.eventfd(0, 0) for _ in range(40)]
    [os.eventfd_write(descriptor, 0xF000000000000000) for descriptor in full]
    pids = []
    for descriptor in full:
        pid = os.fork()
        if pid == 0:
            os.dup2(descriptor, 2)
            os.execv("/usr/bin/uname", ["uname"])
        pids.append(pid)
    os.spawnv(os.P_WAIT, "/usr/bin/id", ["id", "-u"])
    codes = {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids}
    print(codes, denied(2), flush=True)
    """
    script = PYTHON.format(WITH_STDERR + code.replace("\n    ", "\n"))
    code_, out, err = zygote.call(script, forbid("uname"), allow("id"))
    assert (code_, out.partition("\n")[2], err) == (0, "{1} 1\n", DENIED)


def test_a_name_that_is_not_the_files_does_nothing_outside(way: Way) -> None:
    # Programs of many names do by argv[0] what no rule has allowed.
    with subprocess.Popen(["sleep", "61.25"]) as target:
        way.call(way.exec("/usr/bin/pgrep", "-f 'sleep 61.25'", "pkill"), allow("/usr/bin/pgrep"))
        still_runs = target.poll() is None
        target.kill()
    assert still_runs


@pytest.mark.parametrize("name", ["other", "-grep", "grep/", "/usr/bin/other"])
def test_whoever_has_another_name_runs_inside_and_keeps_it(way: Way, name: str) -> None:
    asked: list[bytes] = []

    def answer(question: Question) -> int:
        asked.append(question.argv[0])
        return ACCEPT

    for rule in (allow("grep"), prompt("grep")):
        called = way.call(way.exec("/usr/bin/grep", PRIVILEGES, name), rule, answer=answer)
        assert called == (0, INSIDE, "")
    assert asked == [name.encode()]
    shown = way.call(way.exec("/usr/bin/head", "-c 200 /proc/self/cmdline", name), allow("head"))[1]
    assert shown.split("\0")[:2] == [name, "-c"]


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("head", "head"),
        *((given, "/usr/bin/head") for given in ("/evil/bin/head", "./head", "")),
    ],
)
def test_outside_a_name_leads_to_the_judged_file(way: Way, given: str, seen: str) -> None:
    assert way.call(way.exec("/usr/bin/grep", PRIVILEGES, given.replace("head", "grep")), allow("grep")) == (
        *(0, OUTSIDE, ""),
    )
    shown = way.call(way.exec("/usr/bin/head", "-c 200 /proc/self/cmdline", given), allow("head"))[1]
    assert shown.split("\0")[:2] == [seen, "-c"]


def test_a_link_is_judged_by_the_name_used(way: Way, tmp_path: Path) -> None:
    link = tmp_path / "other"
    link.symlink_to("/usr/bin/grep")
    rules = allow("grep"), allow("/usr/bin/grep")
    assert way.call(way.exec(str(link), PRIVILEGES), *rules) == (0, INSIDE, "")
    assert way.call(way.exec(str(link), PRIVILEGES), allow("other")) == (0, OUTSIDE, "")


@pytest.mark.parametrize("place", [NATIVE, LANDLOCK])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("flags", ["O_PATH", "O_RDONLY"])
def test_what_a_caller_cannot_write_no_program_opens_for_it(
    way: Way, tmp_path: Path, place: str, number: int, flags: str
) -> None:
    file, tool = victim(tmp_path), tmp_path / "tool"
    tool.write_text(f"#!/bin/sh\necho said > /dev/fd/{number}; echo > {tmp_path}/ran\n")
    tool.chmod(0o755)
    end = way.exec(str(tool))
    code = f"""
    import os
    os.dup2(os.open("{file}", os.{flags}), {number})
    os.execv("/bin/bash", ["bash", "-c", {end!r}])
    """
    way.call(PYTHON.format(code.replace("\n    ", "\n")), allow(str(tool)), place=place)
    assert file.read_text() == "kept\n"
    assert (tmp_path / "ran").exists()


def test_a_path_alone_is_not_handed_on(way: Way, tmp_path: Path) -> None:
    code = f"""
    import os
    os.dup2(os.open("{victim(tmp_path)}", os.O_PATH), 9)
    os.dup2(os.open("/etc/hostname", os.O_RDONLY), 8)
    os.execv("/bin/bash", ["bash", "-c", {way.exec("/usr/bin/find", "/proc/self/fd/8 /proc/self/fd/9")!r}])
    """
    _, out, err = way.call(PYTHON.format(code.replace("\n    ", "\n")), allow("find"))
    assert (out, "/proc/self/fd/9" in err) == ("/proc/self/fd/8\n", True)


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_what_is_closed_is_the_null_device_outside(way: Way, tmp_path: Path, closed: str) -> None:
    told = tmp_path / "told"
    tool = tmp_path / "tool"
    tool.write_text(f"#!/bin/bash\nfor n in 0 1 2; do readlink /proc/$$/fd/$n >> {told}; done\n")
    tool.chmod(0o755)
    way.call(f"exec {closed}; {way.exec(str(tool))}", allow(str(tool)))
    found = told.read_text().splitlines()
    assert len(found) == 3
    for number in "012":
        if f"{number}<" in closed or f"{number}>" in closed:
            assert found[int(number)] == "/dev/null"


def test_limits_of_a_command_end_no_program_outside(way: Way, tmp_path: Path) -> None:
    limits = "for n in c s t f n v d u; do echo $n $(ulimit -S -$n) $(ulimit -H -$n); done"
    ours = subprocess.run(["bash", "-c", limits], capture_output=True, text=True, check=True).stdout
    # Not fewer files than other tests of this user may have on their way between processes: the kernel lets
    # nobody pass one on who has a lower limit than that.
    lower = "for l in 's 500' 't 5' 'f 0' 'n 500' 'u 90'; do ulimit -S -$l; done 2>/dev/null"
    script = f"ulimit -c unlimited; {lower}; {way.exec('/bin/bash', shlex.join(['-c', limits]))}"
    _, out, err = way.call(script, allow("bash"))
    assert err == ""
    assert out.splitlines() == ["c 0 0", *ours.splitlines()[1:]]


@pytest.mark.parametrize("signal", ["SEGV", "ABRT", "XFSZ"])
def test_no_program_outside_dumps_core(way: Way, tmp_path: Path, signal: str) -> None:
    before = sorted(tmp_path.iterdir())
    end = way.exec("/bin/bash", shlex.join(["-c", f"kill -{signal} $$; sleep 9"]))
    code, _, _ = way.call(f"cd {tmp_path}; ulimit -c unlimited; {end}", allow("bash"))
    assert code > 128 or code == -getattr(signals, f"SIG{signal}")  # a stand-in dies of it, too
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("mask", "refused"), [("0", 0), ("0777", 0o077), ("0027", 0o027)])
def test_a_umask_grants_nothing_outside_and_keeps_the_owners_rights(
    zygote: Supervised, tmp_path: Path, mask: str, refused: int
) -> None:
    os.umask(own := os.umask(0))
    assert zygote.call(f"umask {mask}; touch {tmp_path}/made", allow("touch")) == (0, "", "")
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o666 & ~(own | refused)


@pytest.mark.parametrize("name", ["HUP", "USR1", "TERM"])
def test_a_signal_is_the_programs_whoever_stands_for_it(way: Way, tmp_path: Path, name: str) -> None:
    tool, told = tmp_path / "tool", tmp_path / "told"
    ready = f"echo ready > {told}; while :; do sleep 0.05; done"
    tool.write_text(f"#!/bin/bash\ntrap 'exit 7' USR1\ntrap 'kill -KILL $$' HUP\n{ready}\n")
    tool.chmod(0o755)
    until = f"until [ -s {told} ]; do read -t 0.05 < /dev/zero; done 2> /dev/null"
    script = f"({way.exec(str(tool))}) & {until}; kill -{name} $!; wait $!; exit $?"
    assert way.call(script, allow(str(tool)))[0] == {"HUP": 137, "USR1": 7, "TERM": 143}[name]


@pytest.mark.parametrize("flags", ["os.O_CLOEXEC", "0"])
def test_whoever_has_thousands_of_descriptors_costs_little(zygote: Supervised, flags: str) -> None:
    needed, hard = 100 + MOST_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard * 3 // 4 < needed:  # of few, commands get three quarters
        pytest.skip(f"the hard limit of open files here is {hard}, and a command would need {needed}")
    code = f"""
    import os, resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    first = os.open("/dev/null", os.O_RDONLY)
    for number in range(100, {needed}):
        os.dup2(first, number, not {flags})
    try:
        os.execv("/usr/bin/true", ["true"])
    except OSError as error:
        print(error.strerror)
    """
    script = PYTHON.format(code.replace("\n    ", "\n"))
    assert zygote.call(script, allow("true")) == (0, "Too many open files\n", "")


def test_a_number_that_the_supervisor_cannot_have_is_too_many(zygote: Supervised) -> None:
    code = """
    import os, resource
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.dup2(0, hard - 1)
    try:
        os.execv("/usr/bin/true", ["true"])
    except OSError as error:
        print(error.strerror)
    """
    script = PYTHON.format(code.replace("\n    ", "\n"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = "Too many open files\n" if soft < hard else ""
    assert zygote.call(script, allow("true")) == (0, wanted, "")
