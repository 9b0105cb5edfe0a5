"""Views that are played from a list of calls: the same as those built with care, or built with care."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.sandbox.kernel import mounts
from execserver.sandbox.kernel.namespaces import Identity
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import (
    HIDDEN_DIRECTORY,
    HIDDEN_FILE,
    NETWORK_NONE,
    READ,
    ROOT_EMPTY,
    ROOT_READ_ONLY,
    ROOT_WRITABLE,
    WRITE,
    Missing,
    Mount,
    SandboxPlan,
)
from execserver.sandbox.rootfs.recorded import RecordedRoot
from execserver.sandbox.rootfs.recording import Recording
from execserver.zygote.confine import plan_cache, sandbox_init
from execserver.zygote.confine.sandbox_init import prepare
from tests.support.roots import USERS, give, identity, in_child, mount, open_folder, plan
from tests.support.sandbox_init import MAKERS, program_of
from tests.zygote.confined_harness import ConfinedZygote

pytestmark = pytest.mark.skipif(
    in_child(lambda: int(mounts.available(Kernel())) << 8).code == 0, reason="no mount API of Linux 5.12"
)

# Network namespaces that tests beside this one make come and go on the host.
SHOW = """
grep -v ' /run/netns' /proc/self/mountinfo | cut -d' ' -f4- | sed 's/ shared:[0-9]*//; s/ master:[0-9]*//'
ls -lanR --time-style=+ /dev | sed 's/^total.*//'
grep -E '^(Cap|NoNewPrivs|Seccomp)' /proc/self/status
umask; pwd; readlink /proc/self/root; ls /proc/self/fd; cat /proc/sys/user/max_cgroup_namespaces
"""


@pytest.fixture
def ws() -> Iterator[Path]:
    """Yield a folder with what plans mount and hide."""
    with open_folder() as folder:
        for name in ("kept", "secret", "ws"):
            (folder / name).mkdir()
        (folder / "hidden").write_text("hidden")
        (folder / "ws" / "secret").write_text("secret")
        yield folder


def everything(folder: Path, root: str = ROOT_READ_ONLY) -> SandboxPlan:
    """Return a plan with a mount of each kind that can be prepared, and a missing name."""
    parent = identity(folder / "ws")
    return SandboxPlan(
        root,
        (
            mount(WRITE, folder / "ws"),
            mount(READ, folder / "kept"),
            mount(HIDDEN_DIRECTORY, folder / "secret"),
            mount(HIDDEN_FILE, folder / "hidden"),
            mount(HIDDEN_FILE, folder / "ws" / "secret"),
        ),
        missing=(Missing(os.fsencode(folder / "ws" / ".git"), parent, True, True),),
        network=NETWORK_NONE,
    )


def careful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "prepare", lambda *_: None)


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("root", [ROOT_READ_ONLY, ROOT_WRITABLE])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_played_view_is_the_one_that_is_built_with_care(
    user: int, root: str, maker: str, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(ws, user)
    view = everything(ws, root)
    shown = []
    for _ in range(2):
        with ConfinedZygote(user, folder=os.fsencode(ws), program=program_of(maker)) as zygote:
            shown += [zygote.sh(SHOW, plan=view, cwd=os.fsencode(ws / "ws")) for _ in range(2)]
        careful(monkeypatch)
    assert shown[0][0] == 0, shown[0]
    assert shown[1:] == shown[:1] * 3


@pytest.mark.parametrize("user", USERS)
def test_a_prepared_view_is_played_to_its_end(user: int, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "not played")

    monkeypatch.setattr(sandbox_init, "_confine", refuse)
    give(ws, user)
    with ConfinedZygote(user, folder=os.fsencode(ws)) as zygote:
        assert zygote.sh("echo here", plan=everything(ws))[:2] == (0, "here\n")


def test_views_of_the_usual_plans_are_prepared(ws: Path) -> None:
    def act() -> int:
        return int(prepare(Kernel(), everything(ws), Identity(), settings=[b"sys"]) is not None) << 8

    assert in_child(act).code == 1


def test_what_depends_on_what_is_there_is_not_prepared(ws: Path) -> None:
    unknown = Mount(WRITE, b"/tmp", b"/tmp", None)
    many = plan(*[mount(HIDDEN_DIRECTORY, ws / "secret")] * 65)
    for view in (plan(root=ROOT_EMPTY), plan(unknown), many):
        assert prepare(Kernel(), view, Identity(), settings=[b"sys"]) is None
    assert prepare(Kernel(), plan(), Identity(), settings=None) is None
    assert prepare(Kernel(("mount_setattr",)), plan(), Identity(), settings=[b"sys"]) is None


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("maker", MAKERS)
def test_an_object_that_is_not_the_plans_is_refused(user: int, maker: str, ws: Path) -> None:
    give(ws, user)
    view = everything(ws)
    with ConfinedZygote(user, folder=os.fsencode(ws), program=program_of(maker)) as zygote:
        assert zygote.sh("true", plan=view)[0] == 0
        (ws / "kept").rename(ws / "old")
        (ws / "kept").mkdir()
        assert "it is not what it was" in zygote.root_refusal(view)
        (ws / "kept").rmdir()
        assert "No such file" in zygote.root_refusal(view)
        (ws / "kept").symlink_to(ws / "old")
        assert "symbolic links" in zygote.root_refusal(view)
        (ws / "kept").unlink()
        (ws / "old").rename(ws / "kept")
        assert zygote.sh("true", plan=view)[0] == 0


@pytest.mark.parametrize("failing", ["fsmount", "move_mount", "mknodat", "openat2", "mount_setattr"])
@pytest.mark.parametrize("user", USERS)
def test_a_call_with_another_result_than_written_down_leaves_it_to_care(
    failing: str, user: int, ws: Path
) -> None:
    give(ws, user)
    kernel = Kernel()
    real, number, calls = kernel.syscall, kernel.arguments(failing, ())[0], [0]

    def disturbed(called: object, *arguments: object) -> int:
        calls[0] += called == number
        if calls[0] == 3 and called == number:
            return -1
        return int(real(called, *arguments))

    with ConfinedZygote(user, folder=os.fsencode(ws)) as zygote:
        whole = zygote.sh(SHOW, plan=everything(ws))
    kernel.syscall = disturbed  # type: ignore[assignment]
    with ConfinedZygote(user, kernel, os.fsencode(ws)) as zygote:
        calls[0] = 0
        assert zygote.sh(SHOW, plan=everything(ws)) == whole


def test_a_played_call_that_fails_at_the_end_lets_nothing_run(ws: Path) -> None:
    kernel = Kernel()
    real, number = kernel.syscall, kernel.arguments("capset", ())[0]
    kernel.syscall = lambda *call: -1 if call[0] == number else int(real(*call))  # type: ignore[assignment]
    give(ws, USERS[-1])
    with ConfinedZygote(USERS[-1], kernel, os.fsencode(ws)) as zygote:
        assert "capset" in zygote.root_refusal(everything(ws))


def test_a_recording_knows_the_descriptors_that_will_be_opened_and_closes_them_in_one_go() -> None:
    recording = Recording(Kernel(), range(2))
    first = recording.call("openat", -100, b"/", os.O_PATH | os.O_CLOEXEC, 0)
    second = recording.call("openat", -100, b"/", os.O_PATH | os.O_CLOEXEC, 0)
    recording.close(first)
    third = recording.call("openat", -100, b"/", os.O_PATH | os.O_CLOEXEC, 0)
    assert (first, second, third, recording.taken()) == (2, 3, 4, frozenset(range(5)))
    recording.call("close_range", 3, 0xFFFFFFFF, 0)
    fourth = recording.call("openat", -100, b"/", os.O_PATH | os.O_CLOEXEC, 0)
    assert (fourth, recording.taken()) == (3, frozenset(range(4)))


def test_a_played_descriptor_must_have_the_recorded_number() -> None:
    recording = Recording(Kernel(), range(500))
    recording.call("openat", -100, b"/", os.O_PATH | os.O_CLOEXEC, 0)
    recorded = recording.take()

    def act() -> int:
        with pytest.raises(OSError, match="not the expected descriptor") as caught:
            recorded.play()
        assert (caught.value.errno, caught.value.filename) == (errno.EBADF, "openat")
        return 0

    assert in_child(act).status == 0


def test_a_played_function_may_refuse() -> None:
    def refuse(number: int) -> None:
        raise OSError(number, "refused")

    recording = Recording(Kernel(), range(3))
    recording.run(refuse, errno.ESTALE)
    with pytest.raises(OSError, match="refused"):
        recording.take().play()


def test_a_placeholder_of_another_path_is_not_taken_for_granted(ws: Path) -> None:
    def act() -> int:
        view = RecordedRoot(Kernel(), everything(ws), (), (), 64, *[lambda _: None] * 3)
        other = Mount(READ, b"/etc", b"/etc", identity(Path("/etc")))
        return (view.enter(b"", [other]) is False) << 8

    assert in_child(act).code == 1
