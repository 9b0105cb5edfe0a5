"""`execserver doctor`: which sandbox works on this machine, for which policy, and the blockers of the others.

Probes everything in processes that end, starts no server and leaves nothing behind.  With `--json` it prints
what `environment/sandbox` answers; the server itself runs this program for it.
"""

from __future__ import annotations

import os
import sys

from execserver.leaving import until_left
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.sandbox import nesting
from execserver.sandbox.backends import probe_folders, selection
from execserver.sandbox.backends.probe_egress import check_egress
from execserver.sandbox.backends.probe_limits import check_limits
from execserver.sandbox.kernel import landlock
from execserver.verbs.usage import verb
from execserver.zygote.confine import machine_probe
from execserver.zygote.supervision.probe import check_notification
from execserver.zygote.supervision.stand_in.probe import check_stand_ins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from execserver.sandbox.backends.report import Check, Report
    from execserver.sandbox.plan import SandboxPlan

VERB = "doctor"
JSON_FLAG = "--json"

_COLUMN = 18
_POLICY_NAMES = {
    "read-only": "read-only",
    "workspace-write": "workspace-write",
    "narrow": "only named folders",
    "network-on": "network on",
    "managed-proxy": "managed proxy",
    "full-write": "full write, no network",
}


def main() -> int:
    """Print the findings; return 0 if every policy can be enforced, 1 if not, 2 for wrong usage."""
    return until_left(_main)


def _main() -> int:
    given = verb(f"{VERB} [{JSON_FLAG}]", JSON_FLAG).parse(sys.argv[1:]).options
    report = probe_machine(os.environb)
    answer = selection.answer(report)
    if JSON_FLAG in given:
        import json  # late: its import takes longer than all others here

        sys.stdout.write(json.dumps(answer) + "\n")
    else:
        sys.stdout.write(table(report, nesting.allowed(os.environb)))
    refused = any(isinstance(selection.choose(plan, report), selection.Refusal) for plan in _plans().values())
    return 1 if refused else 0


def probe_machine(environ: Mapping[bytes, bytes]) -> Report:
    """Return what works for a server with this environment and working directory."""
    report = machine_probe.probe_machine(environ.get(b"PATH", b""), _working_directory())
    program = os.fsencode(ExecServerRuntimePaths.detect().program_folder())
    report.checks = (
        *report.checks,
        probe_folders.program_files(program, probe_folders.unpacking_places(environ)),
        probe_folders.state(environ),
        check_notification(),
        check_stand_ins(),
        *check_egress(environ),
        *check_limits(),
    )
    return report


def table(report: Report, nested: bool = False) -> str:
    """Return the findings as text for users; `nested` tells whether nested sandboxes are allowed."""
    lines = [f"Linux {report.kernel}, user {report.uid}", "", "What works here:"]
    shown: set[str] = set()
    for check in report.checks:
        lines += _check_lines(check, shown)
    lines += ["", _nesting_line(report, nested), "", "What enforces which policy:"]
    cures: list[str] = []
    for name, plan in _plans().items():
        choice = selection.choose(plan, report)
        if isinstance(choice, selection.Choice):
            lines.append(f"  yes  {_POLICY_NAMES[name]:<{_COLUMN + 6}}{choice}")
        else:
            lines.append(f"  NO   {_POLICY_NAMES[name]:<{_COLUMN + 6}}refused: {choice.short}")
            cures += [choice.cure] if choice.cure not in cures else []
    if cures:
        lines += ["", "What to do:", *(f"  - {cure}" for cure in cures)]
    return "\n".join(lines) + "\n"


def _nesting_line(report: Report, nested: bool) -> str:
    if nested:
        return "Sandboxes inside: allowed; then FIFOs outside the writable roots can be written to, too."
    if report.landlock_abi < landlock.LEAST_ABI_IN_ROOT:
        return "Sandboxes inside: as the kernel has it; without Landlock FIFOs outside can be written to."
    name = os.fsdecode(nesting.VARIABLE)
    return f"Sandboxes inside: not in views; {name}=1 allows them, and FIFOs outside too."


def _check_lines(check: Check, shown: set[str]) -> list[str]:
    """Return the lines of a check; a remedy that was shown before is not repeated."""
    if check.works:
        return [f"  yes  {check.name:<{_COLUMN}}{check.detail}"]
    lines = [f"  no   {check.name:<{_COLUMN}}{check.blocker}"]
    if check.cure not in shown:
        lines.append(f"       {'':<{_COLUMN}}cure: {check.cure}")
        shown.add(check.cure)
    return lines


def _plans() -> dict[str, SandboxPlan]:
    return selection.policies()


def _working_directory() -> bytes:
    try:
        return os.getcwdb()
    except OSError:
        return b"/"  # the directory was removed
