"""The whole probe of this machine: single features, a real sandbox root, and bubblewrap."""

from __future__ import annotations

import os

from execserver.sandbox.backends.probe import probe, read_facts
from execserver.sandbox.backends.report import BUBBLEWRAP, NATIVE, USER_NAMESPACES, Check, Report
from execserver.sandbox.plan import ROOT_READ_ONLY, SandboxPlan
from execserver.sandbox.rootfs.builder import RootFailed
from execserver.zygote.confine import standalone

_MOUNT_POINTS = ("/dev", "/proc")
_FILTERED = 2  # the seccomp mode of a process that has a filter


def probe_machine(search_path: bytes | None, cwd: bytes) -> Report:
    """Return what works for this process, which has one thread and descriptors 0, 1 and 2 open.

    Bubblewrap is looked up in `search_path`, but not below `cwd`; None is for callers that cannot use it.
    """
    report = probe()
    if report.native:
        _make_a_root(report)
    if search_path is None:
        blocker, cure = "files alone are not served with it", "ask a server, whose file workers can use it"
        bubblewrap = Check(BUBBLEWRAP, False, "", blocker, cure)
    else:
        from execserver.sandbox.backends.probe_bwrap import try_bwrap

        # A filter that refuses namespaces to us refuses them to a set-user-id program as well, so the remedy
        # is the same.
        cure = report.check(USER_NAMESPACES).cure if read_facts().seccomp_mode == _FILTERED else ""
        report.bwrap, bubblewrap = try_bwrap(search_path, cwd, cure)
    report.checks = (*report.checks, bubblewrap)
    return report


def _make_a_root(report: Report) -> None:
    """Make a real sandbox root, the one test that counts; if it fails, the native back end is out."""
    try:
        status = standalone.confine_self_then_call(SandboxPlan(ROOT_READ_ONLY), lambda: 0)
        blocker = f"the process in it ended with status {status}" if status else ""
    except RootFailed as failed:
        blocker = str(failed)
    report.native = not blocker
    made = Check(NATIVE, True, "made, entered, and every privilege given up")
    refused = Check(NATIVE, False, "", f"a view cannot be made: {blocker}", _cure())
    report.checks = (*report.checks, refused if blocker else made)


def _cure() -> str:
    """Return what to do where no view can be made although the kernel has all that it takes."""
    missing = [place for place in _MOUNT_POINTS if not os.path.isdir(place)]
    if missing:
        return f"make {' and '.join(missing)} there: a read-only view needs them to mount its own on"
    return "please report this with the kernel's version"
