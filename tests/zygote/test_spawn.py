"""One start through a real zygote: what the child gets, and what is told when there is none."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.zygote import lookup
from execserver.zygote.stages import STAGE_CWD, STAGE_EXEC, STAGE_LOOKUP
from tests.support.accounts import account_home, account_shell
from tests.support.proc import may_look_into, require_a_look_into
from tests.support.waiting import wait_until
from tests.zygote.harness import Zygote


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> bytes:
    """Holds ./prog (prints $0), ./text (no format), ./badint (no interpreter), ./plain (not executable)."""
    for name, text, mode in (
        ("prog", "#!/bin/sh\necho $0\n", 0o755),
        ("text", "\0neither ELF nor script", 0o755),
        ("badint", "#!/no/such/interpreter\n", 0o755),
        ("plain", "#!/bin/sh\n", 0o644),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    return os.fsencode(tmp_path)


def test_output_and_status_of_a_child(zygote: Zygote) -> None:
    command = [b"sh", b"-c", b"printf out; printf err >&2; exit 3"]
    assert zygote.run(*command) == (3 << 8, b"out", b"err")


def test_a_child_gets_exactly_the_given_environment_in_order(zygote: Zygote) -> None:
    env = [b"PATH=/usr/bin:/bin", b"B=1", b"A=2", b"=nameless", b"X=Y=Z", b"\xff=\xfe"]
    assert zygote.run(b"cat", b"/proc/self/environ", env=env)[1] == b"\0".join([*env, b""])


def test_arg0_replaces_the_name_only(zygote: Zygote) -> None:
    assert zygote.run(b"cat", b"/proc/self/cmdline", arg0=b"other")[1] == b"other\0/proc/self/cmdline\0"
    assert zygote.run(b"cat", b"/proc/self/cmdline", arg0=b"")[1] == b"\0/proc/self/cmdline\0"


def test_a_child_has_three_descriptors(zygote: Zygote) -> None:
    started = zygote.start_quietly(b"sleep", b"60")
    held = Path(f"/proc/{started.pid}/fd")
    # The answer comes when the kernel closes what is close-on-exec, one by one; a moment later it lets the
    # user look, which the zygote did not.
    wait_until(lambda: may_look_into(started.pid) and sorted(os.listdir(held)) == ["0", "1", "2"])
    assert {(held / number).readlink() for number in "012"} == {Path("/dev/null")}
    zygote.signal(started.request_id, signal.SIGKILL)


def test_piped_stdin_reaches_the_child(zygote: Zygote) -> None:
    assert zygote.run(b"cat", stdin=b"typed")[:2] == (0, b"typed")


def test_a_child_leads_its_own_session_without_a_terminal(zygote: Zygote) -> None:
    _, out, err = zygote.run(b"sh", b"-c", b"cut -d' ' -f1,5-7 /proc/$$/stat; : </dev/tty")
    pid, group, session, terminal = out.split()
    assert pid == group == session
    assert terminal == b"0"
    assert b"/dev/tty" in err


def test_signals_are_default_and_unblocked(zygote: Zygote) -> None:
    _, out, _ = zygote.run(b"grep", b"-E", b"Sig(Blk|Ign)", b"/proc/self/status")
    assert out.split() == [b"SigBlk:", b"0" * 16, b"SigIgn:", b"0" * 16]


def test_a_child_starts_in_its_cwd_and_the_zygote_stays_at_the_root(zygote: Zygote, folder: bytes) -> None:
    assert zygote.run(b"pwd", cwd=folder)[1] == folder + b"\n"
    assert zygote.refusal(b"nope", cwd=folder).stage == STAGE_EXEC
    require_a_look_into(zygote.pid)
    assert Path(f"/proc/{zygote.pid}/cwd").readlink() == Path("/")


def test_a_program_is_searched_in_the_childs_own_path(zygote: Zygote, folder: bytes) -> None:
    assert zygote.run(b"prog", env=[b"PATH=/nope:" + folder])[1] == folder + b"/prog\n"
    assert zygote.run(b"prog", env=[b"PATH="], cwd=folder)[1] == b"prog\n"
    assert zygote.run(b"prog", env=[b"PATH=."], cwd=folder)[1] == b"./prog\n"
    assert zygote.run(b"./prog", env=[], cwd=folder)[1] == b"./prog\n"
    assert zygote.run(b"echo", b"default", env=[])[1] == b"default\n"


@pytest.mark.parametrize(
    ("program", "path", "number"),
    [
        (b"nope", b"/bin:/usr/bin", errno.ENOENT),
        (b"/no/such", b"/bin", errno.ENOENT),
        (b"./plain", b"/bin", errno.EACCES),
        (b".", b"/bin", errno.EACCES),
        (b"./text", b"/bin", errno.ENOEXEC),
        (b"text", b".:/bin", errno.ENOEXEC),
        (b"./badint", b"/bin", errno.ENOENT),
        (b"badint", b".", errno.ENOENT),
        (b"plain", b".:/nope", errno.EACCES),
        (b"x", b"prog", errno.ENOTDIR),
        (b"x", b"prog:/nope", errno.ENOENT),
        (b"a" * 300, b"/bin", errno.ENAMETOOLONG),
    ],
)
def test_a_program_on_pipes_that_cannot_run(
    zygote: Zygote, folder: bytes, program: bytes, path: bytes, number: int
) -> None:
    failed = zygote.refusal(program, cwd=folder, env=[b"PATH=" + path])
    assert (failed.stage, failed.errno) == (STAGE_EXEC, number)


def test_a_later_candidate_is_run_when_an_earlier_one_cannot(zygote: Zygote, folder: bytes) -> None:
    Path(os.fsdecode(folder), "later").mkdir()
    Path(os.fsdecode(folder), "later", "badint").symlink_to("../prog")
    _, out, _ = zygote.run(b"badint", env=[b"PATH=" + folder + b":" + folder + b"/later"])
    assert out == folder + b"/later/badint\n"


@pytest.mark.parametrize(("name", "number"), [(b"/nope", errno.ENOENT), (b"/prog", errno.ENOTDIR)])
def test_a_cwd_on_pipes_that_cannot_be_entered(
    zygote: Zygote, folder: bytes, name: bytes, number: int
) -> None:
    failed = zygote.refusal(b"true", cwd=folder + name)
    assert (failed.stage, failed.errno) == (STAGE_CWD, number)


def test_arguments_beyond_the_kernels_limit(zygote: Zygote) -> None:
    failed = zygote.refusal(b"true", b"x" * 140_000)
    assert (failed.stage, failed.errno) == (STAGE_EXEC, errno.E2BIG)


def test_an_environment_of_megabytes(zygote: Zygote) -> None:
    env = [b"PATH=/bin:/usr/bin", *(b"V%d=" % number + b"x" * 100_000 for number in range(15))]
    assert zygote.run(b"cat", b"/proc/self/environ", env=env)[1] == b"\0".join([*env, b""])


def test_missing_descriptors_are_told_as_such(zygote: Zygote) -> None:
    failed = zygote.ask(b"true", descriptors=[])
    assert repr(failed).startswith(f"Failed(details=[], errno={errno.EMFILE}")


def test_what_nobody_waits_for_is_not_started(zygote: Zygote, folder: bytes) -> None:
    failed = zygote.refusal(b"touch", b"late", cwd=folder, deadline_ns=time.monotonic_ns() - 1)
    assert (failed.stage, failed.errno) == (STAGE_EXEC, errno.ETIMEDOUT)
    status, _, _ = zygote.run(b"true", deadline_ns=time.monotonic_ns() + 10**10)
    assert status == 0
    assert not Path(os.fsdecode(folder), "late").exists()


def test_a_terminal_is_the_controlling_one(zygote: Zygote) -> None:
    _, shown = zygote.run_on_terminal(
        b"sh", b"-c", b"echo direct >/dev/tty; cut -d' ' -f1,5-8 /proc/$$/stat; readlink /proc/$$/fd/*"
    )
    direct, ids, *opened = shown.split(b"\r\n")
    pid, group, session, terminal, foreground = ids.split()
    assert direct == b"direct"
    assert pid == group == session == foreground
    assert terminal != b"0"
    assert len({target for target in opened if target}) == 1
    assert len(opened) == 4


def test_a_terminal_child_gets_its_environment_and_a_shell(zygote: Zygote) -> None:
    shell = (account_shell() or "/bin/sh").encode()
    _, shown = zygote.run_on_terminal(b"/bin/cat", b"/proc/self/environ", env=[b"A=1", b"Z=2"])
    assert shown == b"A=1\0SHELL=%b\0Z=2\0" % shell
    _, shown = zygote.run_on_terminal(b"/bin/cat", b"/proc/self/environ", env=[b"Z=2", b"SHELL=/zz", b"A=1"])
    assert shown == b"Z=2\0SHELL=/zz\0A=1\0"


def test_a_terminal_program_keeps_its_bare_name(zygote: Zygote, folder: bytes) -> None:
    _, shown = zygote.run_on_terminal(b"cat", b"/proc/self/cmdline")
    assert shown == b"cat\0/proc/self/cmdline\0"
    _, shown = zygote.run_on_terminal(b"./prog", cwd=folder)
    assert shown == folder + b"/./prog\r\n"


def test_arg0_replaces_the_program_of_a_terminal(zygote: Zygote) -> None:
    _, shown = zygote.run_on_terminal(b"nope", b"/proc/self/cmdline", arg0=b"cat")
    assert shown == b"cat\0/proc/self/cmdline\0"
    failed = zygote.terminal_refusal(b"cat", arg0=b"custom0")
    assert (failed.reason, failed.details) == (lookup.NOT_IN_PATH, [b"custom0", b"/usr/bin:/bin"])


@pytest.mark.parametrize("cwd", [b"/nope", b"/prog"])
def test_a_terminal_without_a_cwd_starts_at_home(zygote: Zygote, folder: bytes, cwd: bytes) -> None:
    home = b"HOME=" + folder
    _, shown = zygote.run_on_terminal(b"/bin/pwd", cwd=folder + cwd, env=[home])
    assert shown == folder + b"\r\n"
    _, shown = zygote.run_on_terminal(b"./prog", cwd=folder + cwd, env=[home])
    assert shown == folder + b"/./prog\r\n"
    _, shown = zygote.run_on_terminal(b"/bin/pwd", cwd=folder + cwd, env=[])
    assert shown == (account_home() or "/").encode() + b"\r\n"


@pytest.mark.parametrize("home", [b"HOME=/no/such/home", b"HOME="])
def test_a_terminal_without_cwd_and_home_is_refused(zygote: Zygote, home: bytes) -> None:
    failed = zygote.terminal_refusal(b"/bin/pwd", cwd=b"/nope", env=[home])
    assert (failed.stage, failed.errno) == (STAGE_CWD, errno.ENOENT)
    failed = zygote.terminal_refusal(b"pwd", cwd=b"/nope", env=[home])
    assert (failed.stage, failed.reason) == (STAGE_LOOKUP, lookup.NO_PATH)


def test_a_terminal_program_that_execs_badly_is_refused(zygote: Zygote, folder: bytes) -> None:
    failed = zygote.terminal_refusal(folder + b"/text")
    assert (failed.stage, failed.errno) == (STAGE_EXEC, errno.ENOEXEC)


def test_the_interpreter_of_the_zygote_is_this_one(zygote: Zygote) -> None:
    """Nothing searches a PATH to start it."""
    require_a_look_into(zygote.pid)
    assert Path(f"/proc/{zygote.pid}/exe").resolve() == Path(sys.executable).resolve()
