"""What enforces sandboxes on this machine, with every trial that counts: steps, a real view, bubblewrap."""

from __future__ import annotations

from execserver.sandbox.plan import ROOT_READ_ONLY, ViewPlan
from execserver.sandbox.probe import probe, read_facts
from execserver.sandbox.report import BUBBLEWRAP, NATIVE, USER_NAMESPACES, Check, Report
from execserver.sandbox.view import ViewFailed
from execserver.zygote import confine

_FILTERED = 2  # the mode of a process under a filter of system calls


def examine(search_path: bytes | None, cwd: bytes) -> Report:
    """Return what works for this process, which has one thread and open descriptors 0, 1 and 2.

    Bubblewrap is looked for in `search_path`, but not below `cwd`; None is for callers that cannot use it.
    """
    report = probe()
    if report.native:
        _make_a_view(report)
    if search_path is None:
        blocker, cure = "files alone are not served with it", "ask a server, whose file workers can use it"
        bubblewrap = Check(BUBBLEWRAP, False, "", blocker, cure)
    else:
        from execserver.sandbox.probe_bwrap import try_bwrap

        # What a filter refuses to us it refuses to a set-user-id program as well.
        cure = report.check(USER_NAMESPACES).cure if read_facts().seccomp_mode == _FILTERED else ""
        report.bwrap, bubblewrap = try_bwrap(search_path, cwd, cure)
    report.checks = (*report.checks, bubblewrap)
    return report


def _make_a_view(report: Report) -> None:
    """Make a real view, the one test that counts; one that fails is the end of that back end."""
    try:
        status = confine.confine_self_then_call(ViewPlan(ROOT_READ_ONLY), lambda: 0)
        blocker = f"the process in it ended with status {status}" if status else ""
    except ViewFailed as failed:
        blocker = str(failed)
    report.native = not blocker
    made = Check(NATIVE, True, "made, entered, and every privilege given up")
    refused = Check(
        NATIVE, False, "", f"a view cannot be made: {blocker}", "please report this with the kernel's version"
    )
    report.checks = (*report.checks, refused if blocker else made)
