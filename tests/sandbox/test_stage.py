"""The last step before a command in bubblewrap's view: its code, what it executes, and how it fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from execserver.sandbox.backends.stage import Stage, reserve
from execserver.sandbox.backends.stage_code import CODE, LISTINGS
from execserver.sandbox.kernel import landlock
from execserver.sandbox.kernel.privileges import close_from, no_new_privileges
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import ROOT_READ_ONLY, SandboxPlan
from tests.support.assembler import machine_code
from tests.support.roots import Outcome, in_child

MACHINE = os.uname().machine
needs_landlock = pytest.mark.skipif(
    landlock.abi(Kernel()) < landlock.LEAST_ABI_IN_ROOT,
    reason="this kernel has no Landlock of ABI 2 or newer",
)


@pytest.mark.parametrize("machine", LISTINGS)
def test_the_numbers_are_what_the_words_say(machine: str, tmp_path: Path) -> None:
    assert machine_code(machine, LISTINGS[machine], tmp_path) == CODE[machine]


def staged(
    candidates: Sequence[bytes],
    *argv: bytes,
    env: dict[bytes, bytes] | None = None,
    rules: Sequence[tuple[int, bytes]] = ((landlock.REFER, b"/"), (landlock.WRITE_FILE, b"/dev")),
    ruleset: int | None = None,
) -> Outcome:
    """Execute the stage as bubblewrap does, under new rules against writing, and return what came of it."""

    def execute() -> int:
        child = os.fork()
        if child == 0:
            try:
                become_staged()
            finally:
                os._exit(99)
        return os.waitpid(child, 0)[1]

    def become_staged() -> None:
        kernel = Kernel()
        close_from(kernel, 3)  # whatever the tests were started with
        no_new_privileges(kernel)
        version = landlock.abi(kernel)
        made = landlock.make_rules(
            kernel, version, landlock.WRITE_FILE | landlock.REFER, SandboxPlan(ROOT_READ_ONLY)
        )
        os.set_inheritable(made, True)
        number = made if ruleset is None else ruleset
        own = reserve()
        os.write(own, Stage(rules, candidates, b"named").image(kernel.machine, number, own))
        os.execve(b"/proc/self/fd/%d" % own, [b"stage", *argv], env or {})

    return in_child(execute)


@needs_landlock
def test_arguments_and_variables_pass_and_no_descriptor_does() -> None:
    script = b'echo "$0|$1|$2|$MARK"; ls -1 /proc/self/fd | tr "\\n" " "; tr "\\0" "|" < /proc/$$/cmdline'
    done = staged([b"/bin/sh"], b"other", b"-c", script, b"me", b"", b"a b", env={b"MARK": b"set"})
    # The last descriptor is the listing's own.
    assert done.out == "me||a b|set\n0 1 2 3 other|-c|" + script.decode() + "|me||a b|"
    assert done.code == 0


@needs_landlock
def test_the_rules_hold_for_the_command(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p")
    script = f"echo x > /dev/null && echo kept; echo x 1<> {tmp_path}/p"
    done = staged([b"/bin/sh"], b"sh", b"-c", script.encode())
    assert done.out == "kept\n"
    assert "Permission denied" in done.err


@needs_landlock
def test_what_is_executed_is_what_execvp_would(tmp_path: Path) -> None:
    for name in ("first", "second", "closed"):
        (tmp_path / name).mkdir()
    closed, second = tmp_path / "closed" / "tool", tmp_path / "second" / "tool"
    closed.write_text("")
    second.write_text('echo "$0 $1"')
    second.chmod(0o755)
    way = [os.fsencode(path) for path in (tmp_path / "first/tool", closed, closed / "below", second)]
    # It is no program and has no first line: the shell runs it.
    assert staged(way, b"tool", b"word").out == f"{second} word\n"


@needs_landlock
@pytest.mark.parametrize(
    ("found", "number"),
    [
        ("nothing", errno.ENOENT),
        ("closed, then nothing", errno.EACCES),
        ("nothing, then below a file", errno.ENOTDIR),
        ("a long name", errno.ENAMETOOLONG),
        ("no file", errno.ENOENT),
    ],
)
def test_what_cannot_be_executed_is_told_as_bubblewrap_tells_it(
    tmp_path: Path, found: str, number: int
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    nothing, closed, below = (os.fsencode(path) for path in (tmp_path / "no", file, file / "below"))
    way = {
        "nothing": [nothing],
        "closed, then nothing": [closed, nothing],
        "nothing, then below a file": [nothing, below],
        "a long name": [b"x" * 5000],
        "no file": [],
    }[found]
    done = staged(way, b"named")
    assert (done.out, done.err) == ("", f"bwrap: execvp named: {os.strerror(number)}\n")
    assert done.code == 1


@needs_landlock
@pytest.mark.parametrize("fault", ["no ruleset", "no such place", "a right that a file cannot have"])
def test_nothing_runs_without_the_rules(fault: str) -> None:
    refused: dict[str, tuple[tuple[int, bytes], int | None]] = {
        "no ruleset": ((landlock.REFER, b"/"), 0),
        "no such place": ((landlock.REFER, b"/no/such/place"), None),
        "a right that a file cannot have": ((landlock.REFER, b"/dev/null"), None),
    }
    rule, ruleset = refused[fault]
    done = staged([b"/bin/echo"], b"echo", b"ran", rules=[rule], ruleset=ruleset)
    assert (done.out, done.code) == ("", 1)
    assert done.err.startswith(
        "codex-linux-sandbox: Landlock refuses what closes FIFOs and devices outside: "
    )
    assert done.err.count("\n") == 1


@needs_landlock
def test_rules_that_are_not_to_be_had_are_no_way_around_them() -> None:
    done = staged([b"/bin/echo"], b"echo", b"ran", rules=[], ruleset=900)
    assert (done.out, done.code) == ("", 1)
    assert done.err.endswith(": Bad file descriptor\n")


def test_a_kernel_that_executes_no_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int) -> int:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(OSError, match=r"vm\.memfd_noexec") as told:
        reserve()
    assert told.value.errno == errno.EACCES


def test_a_kernel_that_knows_no_such_flag_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def make(name: str, flags: int) -> int:
        given.append(flags)
        if flags:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return 7

    monkeypatch.setattr(os, "memfd_create", make)
    assert (reserve(), given) == (7, [0x10, 0])
