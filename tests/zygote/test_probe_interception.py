"""Which way programs are noticed here, why not, and what to do: kernels and shells of all kinds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from execserver.sandbox.kernel import privileges, seccomp
from execserver.sandbox.kernel.seccomp_table import ALWAYS
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.zygote.supervision import probe
from execserver.zygote.supervision.probe import check_notification, choose, is_not_patched
from execserver.zygote.supervision.records import NOTIFY, WRAPPER
from execserver.zygote.supervision.trap import notify
from tests.support.roots import in_child

LISTENS_NOT = Kernel(without=("seccomp",))


def shell(folder: Path, text: str) -> str:
    """Make a program that stands for a shell."""
    path = folder / "shell"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def told(look: Callable[[], object]) -> object:
    """Return what is seen in a child that may restrict itself."""

    def act() -> int:
        os.write(1, repr(look()).encode())
        return 0

    return in_child(act).value


@pytest.fixture
def _notified() -> None:
    check = check_notification()
    if not check.works:
        pytest.skip(check.blocker)


@pytest.mark.usefixtures("_notified")
def test_any_shell_will_do_where_the_kernel_tells() -> None:
    choice = choose("/bin/sh")
    assert (choice.interception, choice.reason) == (NOTIFY, "")


def test_a_patched_shell_is_the_other_way(tmp_path: Path) -> None:
    for name in ("BASH_EXEC_WRAPPER", "EXEC_WRAPPER"):
        patched = shell(tmp_path, f"exec \"${name}\" /bin/echo /bin/echo '{probe._MARK}'")
        choice = choose(patched, LISTENS_NOT)
        assert choice.interception == WRAPPER
        assert "filter that tells of system calls" in choice.reason


def test_without_either_way_the_reasons_and_the_cures_are_told() -> None:
    choice = choose("/bin/sh", LISTENS_NOT)
    assert choice.interception is None
    assert "/bin/sh has no wrapper patch. What to do: use Linux 5.9 or newer" in choice.reason
    assert choice.reason.endswith("; or name a shell with the wrapper patch with --bash")


@pytest.mark.usefixtures("_notified")
@pytest.mark.parametrize(
    ("call", "blocker", "cure"),
    [
        ("seccomp", "has no filter that tells of system calls (ENOSYS)", "use Linux 5.9"),
        ("pidfd_getfd", "has no copying of a program's descriptors (ENOSYS)", "use Linux 5.9"),
        ("ptrace", "refuses the ptrace of a program (EPERM)", ""),
    ],
)
def test_what_a_kernel_lacks_is_named(call: str, blocker: str, cure: str) -> None:
    check = check_notification(Kernel(without=(call,)))
    assert not check.works
    assert blocker in check.blocker
    assert cure in check.cure


@pytest.mark.usefixtures("_notified")
def test_what_a_containers_filter_refuses_is_named() -> None:
    def refused() -> list[str]:
        kernel = Kernel()
        privileges.no_new_privileges(kernel)
        seccomp.install_program(kernel, seccomp.program([("ptrace", ALWAYS, ())], kernel.machine))
        check = check_notification()
        return [check.blocker[:72], check.cure[:50]]

    assert told(refused) == [
        "a seccomp filter, as container programs set one, refuses the ptrace of a",
        "start the container with --cap-add SYS_PTRACE, or ",
    ]


@pytest.mark.usefixtures("_notified")
def test_a_second_listener_is_told() -> None:
    def taken() -> str:
        kernel = Kernel()
        privileges.no_new_privileges(kernel)
        notify.install(kernel)
        return check_notification().blocker

    assert told(taken) == "a filter around this process has a listener of its own already (EBUSY)"


@pytest.mark.parametrize("refused", ["2", "3"])
def test_yama_is_named(refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scope").write_text(refused + "\n")
    monkeypatch.setattr(probe, "_YAMA", str(tmp_path / "scope"))
    check = check_notification(Kernel(without=("ptrace",)))
    if "ptrace" not in check.blocker:
        pytest.skip(check.blocker)
    assert f"kernel.yama.ptrace_scope={refused}" in check.blocker
    assert check.cure.startswith("sysctl -w kernel.yama.ptrace_scope=1")


@pytest.mark.parametrize("text", ["exit 0", "echo something else", "yes"])
def test_other_shells_are_told_from_patched_ones(text: str, tmp_path: Path) -> None:
    path = shell(tmp_path, text)
    assert is_not_patched(path) == f"{path} has no wrapper patch"


def test_a_shell_that_is_none_is_told() -> None:
    assert is_not_patched("/no/shell") == "/no/shell cannot be started: No such file or directory"


def test_a_shell_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SHELL_LIMIT_S", 0.05)
    path = shell(tmp_path, "sleep 55 & wait")
    started = time.monotonic()
    assert is_not_patched(path) == f"{path} has no wrapper patch"
    assert time.monotonic() - started < 20
