from __future__ import annotations

import errno

import pytest

from execserver.sandbox.backends.blockers import (
    STEP_MAPS,
    STEP_MOUNT,
    STEP_NAMESPACES,
    STEP_PIVOT,
    STEP_PROC,
    STEP_USER,
    SYSCTL_APPARMOR,
    SYSCTL_CLONE,
    SYSCTL_MAX,
    MachineFacts,
    explain,
    system_blocker,
)

WSL1 = "Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com) (gcc version 5.4.0) #1237"
WSL2 = "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@941d701f84f1)"


@pytest.mark.parametrize(
    ("number", "facts", "blocker", "cure"),
    [
        (errno.ENOSPC, MachineFacts({SYSCTL_MAX: "0"}), "switched off", f"sysctl -w {SYSCTL_MAX}=15000"),
        (
            errno.ENOSPC,
            MachineFacts({SYSCTL_MAX: "96365"}),
            "limit on user namespaces is reached",
            SYSCTL_MAX,
        ),
        (
            errno.EUSERS,
            MachineFacts({SYSCTL_MAX: "96365"}),
            "limit on user namespaces is reached",
            SYSCTL_MAX,
        ),
        (errno.EPERM, MachineFacts({SYSCTL_CLONE: "0"}), "only root may make", f"sysctl -w {SYSCTL_CLONE}=1"),
        (
            errno.EPERM,
            MachineFacts({SYSCTL_APPARMOR: "1"}),
            "AppArmor refuses",
            f"sysctl -w {SYSCTL_APPARMOR}=0",
        ),
        (
            errno.EPERM,
            MachineFacts({SYSCTL_CLONE: "1"}, seccomp_mode=2),
            "a seccomp filter",
            "--security-opt",
        ),
        (errno.EPERM, MachineFacts(chroot=True), "chroot", "outside the chroot"),
        (errno.EPERM, MachineFacts(), "a security module refuses user namespaces", "bubblewrap"),
        (errno.EACCES, MachineFacts(), "a security module refuses user namespaces (EACCES)", "bubblewrap"),
        (errno.EACCES, MachineFacts(selinux=True), "SELinux refuses", "`user_namespace create`"),
        (errno.EPERM, MachineFacts(selinux=True), "a security module refuses user namespaces", "bubblewrap"),
        (errno.ENOSYS, MachineFacts(), "built without user namespaces", "as root"),
        (errno.EINVAL, MachineFacts(), "built without user namespaces", "as root"),
    ],
)
def test_each_refusal_of_user_namespaces_has_its_own_blocker_and_cure(
    number: int, facts: MachineFacts, blocker: str, cure: str
) -> None:
    found = explain(STEP_USER, number, facts)
    assert blocker in found[0]
    assert cure in found[1]


def test_a_sysctl_for_users_does_not_explain_what_root_is_refused() -> None:
    facts = MachineFacts({SYSCTL_CLONE: "0", SYSCTL_APPARMOR: "1"}, seccomp_mode=2, privileged=True)
    assert "seccomp filter" in explain(STEP_USER, errno.EPERM, facts)[0]


@pytest.mark.parametrize("step", [STEP_MAPS, STEP_NAMESPACES, STEP_MOUNT, STEP_PROC])
def test_apparmor_may_give_a_namespace_that_can_do_nothing(step: str) -> None:
    blocker, cure = explain(step, errno.EACCES, MachineFacts({SYSCTL_APPARMOR: "1"}))
    assert "AppArmor" in blocker
    assert step in blocker
    assert "userns" in cure


def test_a_masked_proc_is_told_from_a_filter() -> None:
    blocker, cure = explain(STEP_PROC, errno.EPERM, MachineFacts(seccomp_mode=2))
    assert "masked" in blocker
    assert "systempaths=unconfined" in cure


def test_a_filter_that_refuses_a_later_step_is_named_with_the_step() -> None:
    blocker, _ = explain(STEP_MOUNT, errno.EPERM, MachineFacts(seccomp_mode=2))
    assert "seccomp filter" in blocker
    assert STEP_MOUNT in blocker


def test_a_root_that_cannot_be_changed_is_named() -> None:
    assert "initial ramdisk" in explain(STEP_PIVOT, errno.EINVAL, MachineFacts())[0]


def test_other_limits_are_named() -> None:
    assert "user.max_" in explain(STEP_NAMESPACES, errno.ENOSPC, MachineFacts())[1]


def test_an_errno_nobody_expects_is_shown() -> None:
    assert "EXDEV" in explain(STEP_MOUNT, errno.EXDEV, MachineFacts())[0]


def test_the_first_wsl_is_no_linux() -> None:
    found = system_blocker(WSL1)
    assert found is not None
    assert "WSL1" in found[0]
    assert system_blocker(WSL2) is None
    assert system_blocker("Linux version 6.1.0-18-amd64 (debian-kernel@lists.debian.org)") is None
