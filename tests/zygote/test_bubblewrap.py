"""Commands and workers in views that bubblewrap makes, also for a user to whom namespaces are refused."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.rules.policy import Policy
from execserver.rules.policy_record import encode_policy
from execserver.sandbox.backends import bwrap
from execserver.sandbox.files import worker_records as records
from execserver.sandbox.kernel import landlock
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import LINK, READ, ROOT_EMPTY, WRITE, Missing, Mount, SandboxPlan
from execserver.sandbox.plan_record import encode_plan
from execserver.zygote.channel import receive_record, send_record
from execserver.zygote.confine.sandboxes import Sandboxes
from execserver.zygote.confinement import BUBBLEWRAP, Confinement
from execserver.zygote.libc import Libc
from execserver.zygote.records import SpawnRequest, WorkerRequest
from execserver.zygote.spawn import SpawnFailure
from execserver.zygote.stages import STAGE_ROOT
from execserver.zygote.supervision.records import Supervision, encode_supervision
from tests.support.proc import children_of, is_over
from tests.support.roots import ENV, REFUSED, give, identity, mount, plan
from tests.support.started import start, start_worker
from tests.support.waiting import wait_until
from tests.support.ways import WAYS, Way, bubblewrap_for, require, run, wait_for_start

WRAPPED = [way for way in WAYS if way.back_end == BUBBLEWRAP]
AS_ROOT = WRAPPED[0]
LONG_S = 10_000 + os.getpid()  # no other run of the tests sleeps for as long


@pytest.fixture(params=WRAPPED, ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    require(chosen)
    return chosen


@pytest.fixture
def confinement(tmp_path: Path) -> Iterator[Sandboxes]:
    require(AS_ROOT)
    made = Sandboxes(Libc(), runtime_dir=os.fsencode(tmp_path))
    yield made
    made.close()


def wrapped(view: SandboxPlan) -> Confinement:
    """Return the plan for root's bubblewrap."""
    return Confinement(BUBBLEWRAP, encode_plan(view), bwrap.encode(bubblewrap_for(AS_ROOT)))


def workspace(folder: Path, way: Way) -> tuple[Path, SandboxPlan]:
    """Return a folder with an existing and a missing protected name, and the plan that writes there."""
    ws = folder / "ws"
    (ws / ".git").mkdir(parents=True)
    give(ws, way.user)
    missing = Missing(os.fsencode(ws / ".codex"), identity(ws), True, True)
    view = plan(mount(WRITE, ws), mount(READ, ws / ".git"))
    view.missing = (missing,)
    return ws, view


class Started:
    """A command under bubblewrap that is left to run."""

    def __init__(self, confinement: Sandboxes, view: SandboxPlan, script: str, **more: object) -> None:
        self.confinement = confinement
        self.out, out = os.pipe()
        confined = wrapped(view)
        argv = [b"/bin/sh", b"-c", script.encode()]
        request = SpawnRequest(1, argv, ENV, b"/", confinement=confined)
        for name, value in more.items():
            setattr(request, name, value)
        self.pid = start(confinement, request, [] if request.slave else [out, out])
        wait_for_start(confinement, self.pid)
        os.close(out)

    def read_line(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self.out, 1)
        return line.decode().strip()

    def end(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        os.close(self.out)
        return os.waitstatus_to_exitcode(self.confinement.take_end(self.pid, status))


def test_a_command_sees_the_plans_view_and_nothing_is_left(way: Way, tmp_path: Path) -> None:
    ws, view = workspace(tmp_path, way)
    done = run(way, view, "echo hi > n; mkdir .codex; echo x > .git/x; touch /tmp/no; cat n; id -u", cwd=ws)
    assert done.out.split() == ["hi", str(way.user)]
    assert done.err.count("Read-only file system") == 2
    assert "File exists" in done.err
    assert sorted(entry.name for entry in ws.iterdir()) == [".git", "n"]


def test_an_exit_status_arrives(way: Way) -> None:
    assert run(way, plan(), "exit 7").code == 7
    assert run(way, plan(), "kill -9 $$").code == 137


def test_descriptors_0_1_and_2_reach_the_command(way: Way) -> None:
    # The last is the listing's own.
    assert run(way, plan(), "ls /proc/self/fd").out.split() == ["0", "1", "2", "3"]


def test_a_command_is_found_as_execvp_finds_it(way: Way, tmp_path: Path) -> None:
    ws, view = workspace(tmp_path, way)
    tool = ws / "tool"
    tool.write_text('echo "$0 $1"')  # without a first line: the shell runs it
    tool.chmod(0o755)
    give(ws, way.user)
    # Of a name that is given twice the last holds.
    env = [b"PATH=/nowhere", b"PATH=/no:" + os.fsencode(ws) + b":/usr/bin:/bin"]
    assert run(way, view, ["tool", "word"], cwd=ws, env=env).out == f"{tool} word\n"
    assert run(way, view, ["./tool"], cwd=ws).out == "./tool \n"
    assert run(way, view, ["cat", "/proc/self/comm"]).out == "cat\n"
    missing = run(way, view, ["no-such-tool"], env=env)
    assert (missing.code, missing.err) == (1, "bwrap: execvp no-such-tool: No such file or directory\n")


def test_a_kernel_without_landlock_goes_without_the_stage(way: Way, tmp_path: Path) -> None:
    ws, view = workspace(tmp_path, way)
    names = ("landlock_create_ruleset", "landlock_restrict_self")
    done = run(way._replace(without=names), view, "echo hi > n; cat n; ls /proc/self/fd", cwd=ws)
    assert done.out.split() == ["hi", "0", "1", "2", "3"]


def test_no_variable_reaches_bubblewrap_itself(way: Way) -> None:
    done = run(way, plan(), "tr '\\0' '\\n' < /proc/1/environ; echo; echo $MARK", env=[*ENV, b"MARK=set"])
    assert done.out.split("\n")[-2] == "set"
    assert "LD_PRELOAD" not in done.out


def test_a_variable_it_does_not_take_is_a_refusal(way: Way) -> None:
    done = run(way, plan(), "true", env=[b"=x"])
    assert done.status == REFUSED << 8
    assert "without a name" in done.err


def test_a_folder_that_is_not_in_the_view_makes_way_but_where_a_link_led_there(
    way: Way, tmp_path: Path
) -> None:
    usr = [mount(READ, Path(name).resolve()) for name in ("/usr",)]
    view = plan(*usr, root=ROOT_EMPTY)
    link = tmp_path / "link"
    link.symlink_to("/home")
    env = [*(entry for entry in ENV if not entry.startswith(b"HOME=")), b"HOME=/usr/bin"]
    (there, gone) = (run(way, view, "true", cwd=cwd, env=env) for cwd in ("/home", link))
    assert "chdir" not in there.err
    assert (gone.code, "bwrap: Can't chdir to /home" in gone.err) == (1, True)


def test_another_bubblewrap_than_the_tried_one_is_not_started(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = bubblewrap_for(way)
    found.identity = (*found.identity[:3], found.identity[3] - 1)
    monkeypatch.setattr("tests.support.ways.bubblewrap_for", lambda _: found)
    done = run(way, plan(), "echo ran")
    assert done.status == REFUSED << 8
    assert done.out == ""
    assert "not the file any more that was tried" in done.err


def test_what_is_not_what_was_planned_is_refused(way: Way, tmp_path: Path) -> None:
    ws, view = workspace(tmp_path, way)
    ws.rename(tmp_path / "moved")
    (tmp_path / "other").mkdir()
    ws.symlink_to(tmp_path / "other")
    done = run(way, view, "echo ran")
    assert done.status == REFUSED << 8
    assert done.out == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_to_the_group_reach_the_command(confinement: Sandboxes, number: signal.Signals) -> None:
    script = f"trap 'echo got; exit 9' {number.name[3:]}; echo ready; while :; do sleep 0.05; done"
    started = Started(confinement, plan(), script)
    assert started.read_line() == "ready"
    os.killpg(started.pid, number)
    # The shell may tell first what became of its child, which is in the group too.
    while started.read_line() != "got":
        pass
    assert started.end() == 9


def test_a_kill_ends_everything_inside(confinement: Sandboxes) -> None:
    started = Started(confinement, plan(), f"echo ready; (setsid sleep {LONG_S} &) ; sleep {LONG_S}")
    assert started.read_line() == "ready"
    os.killpg(started.pid, signal.SIGKILL)
    assert started.end() == -9
    wait_until(lambda: not _running(b"sleep\x00%d" % LONG_S))


def test_what_outlives_its_monitor_is_ended_before_the_masks_go(
    confinement: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bubblewrap's first process misses its parent's end when that comes before it asks for the signal."""
    ended: list[int] = []
    monkeypatch.setattr("execserver.zygote.confine.sandboxes.end_inside", ended.append)
    started = Started(confinement, plan(), f"echo ready; sleep {LONG_S}")
    assert started.read_line() == "ready"
    (bubblewrap,) = children_of(started.pid)
    (first,) = children_of(bubblewrap)
    os.killpg(started.pid, signal.SIGKILL)
    assert started.end() == -9
    assert ended == [first]
    wait_until(lambda: not _running(b"sleep\x00%d" % LONG_S))
    assert Started(confinement, plan(), "exit 3").end() == 3
    assert ended == [first]


def test_a_terminal_works_and_its_interrupt_key_too(confinement: Sandboxes) -> None:
    master, slave = os.openpty()
    name = os.ttyname(slave).encode()
    script = "trap 'echo got; exit 4' INT; test -t 0 && echo tty > /dev/stderr; while :; do sleep 0.05; done"
    started = Started(confinement, plan(), script, slave=name)
    os.close(slave)
    try:
        assert os.read(master, 100).strip() == b"tty"
        os.write(master, b"\x03")
        assert started.end() == 4
    finally:
        os.close(master)


def test_where_no_stage_can_be_made_nothing_runs(
    confinement: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise OSError(errno.EACCES, "no stage", None)

    if landlock.abi(Kernel()) < landlock.LEAST_ABI_IN_ROOT:
        pytest.skip("this kernel has no Landlock of ABI 2 or newer")
    monkeypatch.setattr("execserver.zygote.confine.bubblewrap_arguments.reserve", refuse)
    confined = wrapped(plan())
    request = SpawnRequest(1, [b"true"], ENV, b"/", confinement=confined)
    with pytest.raises(SpawnFailure) as failure:
        wait_for_start(confinement, start(confinement, request, [1, 2]))
    assert failure.value.stage == STAGE_ROOT
    assert failure.value.details == [b"bubblewrap: no stage"]


def test_what_bubblewrap_cannot_do_is_told_before_anything_runs(confinement: Sandboxes) -> None:
    program = bubblewrap_for(AS_ROOT)
    program.joinable = False
    confined = Confinement(BUBBLEWRAP, encode_plan(plan(network="proxy")), bwrap.encode(program))
    env = [*ENV, b"HTTP_PROXY=http://127.0.0.1:9"]
    request = SpawnRequest(1, [b"true"], env, b"/", confinement=confined, listens=True)
    with pytest.raises(SpawnFailure) as failure:
        wait_for_start(confinement, start(confinement, request, [1, 2, 0]))
    assert failure.value.stage == STAGE_ROOT
    assert failure.value.details == [b"the networks of this bubblewrap cannot be joined"]


@pytest.mark.parametrize("is_watched", [False, True])
def test_a_network_that_cannot_be_entered_ends_what_was_begun(
    confinement: Sandboxes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_watched: bool
) -> None:
    def refuse(kernel: Kernel, pid: int) -> None:
        raise OSError(errno.EPERM, "refused", None)

    monkeypatch.setattr("execserver.zygote.confine.held_start.join_network", refuse)
    confined = wrapped(plan(mount(WRITE, tmp_path), network="proxy", syscall_filter="proxy-routed"))
    env = [*ENV, b"HTTP_PROXY=http://127.0.0.1:9"]
    argv = [b"/bin/touch", os.fsencode(tmp_path / "ran")]
    supervision = encode_supervision(Supervision(encode_policy(Policy(())))) if is_watched else b""
    request = SpawnRequest(1, argv, env, b"/", confinement=confined, listens=True, supervision=supervision)
    questions = [0] if is_watched else []
    with pytest.raises(SpawnFailure) as failure:
        wait_for_start(confinement, start(confinement, request, [1, 2, *questions, 0]))
    assert failure.value.details == [b"bubblewrap: cannot listen in its network: Operation not permitted"]
    assert not (tmp_path / "ran").exists()


def test_a_start_that_is_given_up_while_its_network_is_made_runs_nothing(
    confinement: Sandboxes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = tmp_path / "told"

    def hang(kernel: Kernel, pid: int) -> None:
        (tmp_path / "new").write_text(str(pid))
        (tmp_path / "new").rename(told)
        select.select([], [], [])

    monkeypatch.setattr("execserver.zygote.confine.held_start.join_network", hang)
    confined = wrapped(plan(mount(WRITE, tmp_path), network="proxy", syscall_filter="proxy-routed"))
    request = SpawnRequest(
        *(1, [b"/bin/touch", os.fsencode(tmp_path / "ran")], [*ENV, b"HTTP_PROXY=http://127.0.0.1:9"], b"/"),
        confinement=confined,
        listens=True,
        deadline_ns=time.monotonic_ns() + 2 * 10**9,
    )
    pid = confinement.begin(request, [1, 2, 0])
    wait_until(told.exists)
    inside = int(told.read_text())
    helper = next(child for child in children_of(pid) if inside not in children_of(child))
    pipes = [os.readlink(entry) for entry in Path(f"/proc/{inside}/fd").iterdir() if int(entry.name) > 2]
    assert len(pipes) > len(set(pipes))  # what it waits for does not end with the others
    wait_until(lambda: confinement.give_up_overdue() == [pid])
    os.waitpid(pid, 0)
    confinement.take_end(pid, 0)
    wait_until(lambda: all(is_over(each) for each in (inside, helper)))
    assert not (tmp_path / "ran").exists()


class TestWorker:
    def ask(self, confinement: Sandboxes, view: SandboxPlan, request: records.Request) -> records.Reply:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        confined = wrapped(view)
        pid = start_worker(confinement, WorkerRequest(1, confined), [theirs.fileno()])
        wait_for_start(confinement, pid)
        theirs.close()
        send_record(ours, records.encode_request(request))
        received = receive_record(ours)
        ours.close()
        _, status = os.waitpid(pid, 0)
        assert confinement.take_end(pid, status) == 0
        assert received is not None
        for descriptor in received[1]:
            os.close(descriptor)
        return records.decode_reply(received[0])

    def test_a_worker_serves_its_view(self, confinement: Sandboxes, tmp_path: Path) -> None:
        ws, view = workspace(tmp_path, AS_ROOT)
        made = self.ask(
            confinement, view, records.Request(1, records.CREATE_DIRECTORY, os.fsencode(ws / "d"))
        )
        assert isinstance(made, records.Done)
        assert (ws / "d").is_dir()

    @pytest.mark.parametrize("name", [".git/x", ".codex", "../outside"])
    def test_a_worker_keeps_to_its_plan(self, confinement: Sandboxes, tmp_path: Path, name: str) -> None:
        ws, view = workspace(tmp_path, AS_ROOT)
        path = os.path.normpath(ws / name)
        refused = self.ask(confinement, view, records.Request(1, records.CREATE_DIRECTORY, os.fsencode(path)))
        assert isinstance(refused, records.Failed)
        assert refused.errno == 30
        assert not os.path.exists(path)

    def test_a_worker_of_a_narrow_view_starts_and_sees_no_more(
        self, confinement: Sandboxes, tmp_path: Path
    ) -> None:
        ws, _ = workspace(tmp_path, AS_ROOT)
        system = [shown(Path(name)) for name in ("/usr", "/etc", "/bin", "/lib", "/lib64")]
        view = plan(*system, mount(WRITE, ws), root=ROOT_EMPTY)
        view.readable = tuple(one.path for one in system)
        found = self.ask(confinement, view, records.Request(1, records.GET_METADATA, os.fsencode(ws)))
        assert isinstance(found, records.Metadata)
        hidden = self.ask(
            confinement, view, records.Request(1, records.GET_METADATA, os.fsencode(__file__[:5]))
        )
        assert isinstance(hidden, records.Metadata | records.Failed)


def shown(path: Path) -> Mount:
    """Return what makes a folder or a link of the host be in an empty view."""
    if path.is_symlink():
        return Mount(LINK, os.fsencode(path), os.fsencode(path.readlink()))
    return mount(READ, path)


def _running(command: bytes) -> bool:
    def matches(pid: str) -> bool:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(command)
        except OSError:
            return False

    return any(matches(pid) for pid in os.listdir("/proc") if pid.isdigit())
