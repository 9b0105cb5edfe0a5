"""Chooses the back end that enforces a plan here, or says why none does.  Pure.

The order is fixed: our own namespaces (native), the strongest and fastest; the system's bubblewrap, which may
have rights that we lack; Landlock, only for what it expresses exactly; then a refusal.  Nothing weaker than
the plan is ever chosen.
"""

from __future__ import annotations

from execserver.sandbox.backends import bwrap, landlock_only
from execserver.sandbox.backends import report as reports
from execserver.sandbox.kernel import landlock
from execserver.sandbox.plan import (
    FILTER_NONE,
    FILTER_OPEN,
    FILTER_PROXY_ROUTED,
    NETWORK_HOST,
    NETWORK_NONE,
    NETWORK_PROXY,
    READ,
    ROOT_EMPTY,
    ROOT_HOST,
    ROOT_READ_ONLY,
    WRITE,
    Missing,
    Mount,
    SandboxPlan,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.backends.report import Report

NATIVE = "native"  # namespaces made by the zygote's child
BUBBLEWRAP = "bubblewrap"
LANDLOCK = "landlock"
FILTER = "filter"  # the system call filter alone: files are not restricted
NOTHING = "none"  # the policy restricts nothing

_WORKSPACE = b"/workspace"
_NOBODY = (0, 0, 0)
_ISOLATE = "start the server without `--linux-sandbox-pid-namespace inherit`"


class Choice:
    """The back end that enforces a plan: its name, how, for users, and what else a zygote needs, as bytes."""

    __slots__ = ("detail", "name", "record")

    def __init__(self, name: str, detail: str = "", record: bytes = b"") -> None:
        self.name = name
        self.detail = detail
        self.record = record

    def __str__(self) -> str:
        return f"{self.name} ({self.detail})" if self.detail else self.name


class Refusal:
    """No back end enforces a plan here: the exact blocker, and the remedy.

    `short` is the part of the reason that concerns this plan and not the machine.
    """

    __slots__ = ("cure", "short", "why")

    def __init__(self, why: str, cure: str, short: str = "") -> None:
        self.why = why
        self.cure = cure
        self.short = short or why

    def __str__(self) -> str:
        return f"{self.why}. What to do: {self.cure}"


def choose(plan: SandboxPlan, report: Report, *, shares_processes: bool = False) -> Choice | Refusal:
    """Return the back end for a plan on the machine of a report.

    With `shares_processes` the command is to stay in the pid namespace of its caller.
    """
    if plan.syscall_filter != FILTER_NONE and not report.seccomp:
        check = report.check(reports.SECCOMP)
        what = "system calls cannot be" if plan.syscall_filter == FILTER_OPEN else "the network cannot be"
        return Refusal(f"{what} withheld: {check.blocker}", check.cure)
    # A managed proxy needs a network namespace, also where files are not restricted.
    if plan.root == ROOT_HOST and plan.network != NETWORK_PROXY:
        return Choice(NOTHING if plan.syscall_filter == FILTER_NONE else FILTER)
    if shares_processes:
        return _sharing_processes(plan, report)
    if report.native:
        return Choice(NATIVE, _native_detail(report))
    if report.bwrap is not None and (plan.network != NETWORK_PROXY or report.bwrap.joinable):
        shown = f"{report.bwrap.path.decode('utf-8', 'replace')} {report.bwrap.version}"
        return Choice(BUBBLEWRAP, shown, bwrap.encode(report.bwrap))
    inexact = landlock_only.inexact(plan)
    if report.landlock_abi >= landlock_only.LEAST_ABI and report.seccomp and not inexact:
        return Choice(LANDLOCK, f"ABI {report.landlock_abi}")
    return _refusal(plan, report, inexact)


def why_not_shared(plan: SandboxPlan, version: int) -> str:
    """Return why a command with this plan must not see the processes of its caller; "" if it may.

    Only Landlock serves then, of this `version`.  The other back ends have nothing to put in the place of
    their pid namespace: by it they end all that a command leaves behind before its masks are removed.  What
    is missing in a writable folder and protected could be made by a process that lives on.
    """
    if inexact := landlock_only.inexact(plan):
        return f"processes are shared, which only Landlock can do safely, and {inexact}"
    if version < landlock.SCOPED_ABI:
        why = f"Landlock keeps signals in from version {landlock.SCOPED_ABI} on (Linux 6.12)"
        return f"processes are shared, and here is version {version}: {why}"
    return ""


def _sharing_processes(plan: SandboxPlan, report: Report) -> Choice | Refusal:
    if reason := why_not_shared(plan, report.landlock_abi):
        return Refusal(reason, _ISOLATE)
    return Choice(LANDLOCK, f"ABI {report.landlock_abi}, in the pid namespace of the server")


def _native_detail(report: Report) -> str:
    how = [] if report.user_namespace else ["as root, without a user namespace"]
    if report.mounts == reports.MOUNTS_OLD:
        how.append("old mount calls")
    return ", ".join(how)


def _refusal(plan: SandboxPlan, report: Report, inexact: str) -> Refusal:
    names = (reports.USER_NAMESPACES, reports.NAMESPACES, reports.PROC, reports.SECCOMP, reports.NATIVE)
    failed = next((check for check in report.checks if check.name in names and not check.works), None)
    native = failed or report.check(reports.NATIVE)
    bubblewrap = report.check(reports.BUBBLEWRAP)
    without = "its networks cannot be joined" if bubblewrap.works else bubblewrap.blocker
    landlock = (
        inexact if report.landlock_abi >= landlock_only.LEAST_ABI else report.check(reports.LANDLOCK).blocker
    )
    unfit = [f"bubblewrap does not serve: {without}"] if bubblewrap.works else []
    if inexact and landlock == inexact:
        unfit.append(f"Landlock does not serve: {inexact}")
    return Refusal(
        f"no sandbox can enforce this policy here: {native.blocker}; "
        f"bubblewrap: {without}; Landlock: {landlock}",
        native.cure or bubblewrap.cure,
        f"of what works here, {'; '.join(unfit)}" if unfit else "nothing works here",
    )


def policies() -> dict[str, SandboxPlan]:
    """Return an example plan, as the planner makes it, for each kind of policy that users know, by name."""
    work = Mount(WRITE, _WORKSPACE, _WORKSPACE, _NOBODY)
    metadata = _WORKSPACE + b"/.git"
    kept = Mount(READ, metadata, metadata, _NOBODY)
    missing = (Missing(_WORKSPACE + b"/.codex", _NOBODY, True, True),)
    return {
        "read-only": SandboxPlan(ROOT_READ_ONLY),
        "workspace-write": SandboxPlan(
            ROOT_READ_ONLY, (work, kept), missing, writable=(_WORKSPACE,), read_only=(metadata,)
        ),
        "narrow": SandboxPlan(
            ROOT_EMPTY,
            (Mount(READ, b"/usr", b"/usr", _NOBODY), work),
            writable=(_WORKSPACE,),
            readable=(b"/usr",),
        ),
        "network-on": SandboxPlan(
            *(ROOT_READ_ONLY, (work, kept), missing, (), NETWORK_HOST, FILTER_OPEN),
            writable=(_WORKSPACE,),
            read_only=(metadata,),
        ),
        "managed-proxy": SandboxPlan(
            *(ROOT_READ_ONLY, (work, kept), missing, (), NETWORK_PROXY, FILTER_PROXY_ROUTED),
            writable=(_WORKSPACE,),
            read_only=(metadata,),
        ),
        "full-write": SandboxPlan(ROOT_HOST, network=NETWORK_NONE),
    }


def answer(report: Report) -> dict[str, object]:
    """Return everything that `execserver doctor --json` and `environment/sandbox` report, as members."""
    rows = []
    for name, plan in policies().items():
        choice = choose(plan, report)
        if isinstance(choice, Refusal):
            row = {"backEnd": None, "detail": "", "blocker": choice.why, "cure": choice.cure}
        else:
            row = {"backEnd": choice.name, "detail": choice.detail, "blocker": None, "cure": None}
        rows.append({"name": name, **row})
    return {**report.members(), "policies": rows}


def summary(report: Report) -> str:
    """Return the line about the back end for the log: which one, or why none."""
    choice = choose(policies()["workspace-write"], report)
    if isinstance(choice, Choice):
        return f"sandboxed requests are enforced by: {choice}"
    reading = choose(policies()["read-only"], report)
    if isinstance(reading, Choice):
        return f"only read-only sandboxes work here, by {reading}: {choice.why}. What to do: {choice.cure}"
    return f"sandboxed requests are refused: {choice}"
