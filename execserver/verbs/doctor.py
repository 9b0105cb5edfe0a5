"""`execserver doctor`: which sandbox works on this machine, for which policy, and what is in the way.

Tries everything in processes that end, starts no server and leaves nothing behind.  With `--json` it prints
what `environment/sandbox` answers; the server itself asks this program.
"""

from __future__ import annotations

import os
import sys

from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.sandbox import back_ends, landlock, nesting, probe_folders
from execserver.verbs.usage import Leave, flags
from execserver.zygote import examined
from execserver.zygote.probe_interception import check_notification

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from execserver.sandbox.plan import ViewPlan
    from execserver.sandbox.report import Check, Report

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
    """Print the findings; return 0 when every policy can be enforced, 1 when not, 2 for wrong usage."""
    try:
        given = flags(VERB, (JSON_FLAG,))
    except Leave as leave:
        return leave.status
    report = examine(os.environb)
    answer = back_ends.answer(report)
    if JSON_FLAG in given:
        import json  # late: heavier than all the rest

        sys.stdout.write(json.dumps(answer) + "\n")
    else:
        sys.stdout.write(table(report, nesting.allowed(os.environb)))
    refused = any(isinstance(back_ends.choose(plan, report), back_ends.Refusal) for plan in _plans().values())
    return 1 if refused else 0


def examine(environ: Mapping[bytes, bytes]) -> Report:
    """Return what works for a server with this environment and working directory."""
    report = examined.examine(environ.get(b"PATH", b""), _working_directory())
    program = os.fsencode(ExecServerRuntimePaths.detect().program_folder())
    report.checks = (
        *report.checks,
        probe_folders.program_files(program, probe_folders.unpacking_places(environ)),
        probe_folders.state(environ),
        check_notification(),
    )
    return report


def table(report: Report, nested: bool = False) -> str:
    """Return the findings for people; `nested` tells whether sandboxes inside a sandbox are allowed."""
    lines = [f"Linux {report.kernel}, user {report.uid}", "", "What works here:"]
    shown: set[str] = set()
    for check in report.checks:
        lines += _check_lines(check, shown)
    lines += ["", _nesting_line(report, nested), "", "What enforces which policy:"]
    cures: list[str] = []
    for name, plan in _plans().items():
        choice = back_ends.choose(plan, report)
        if isinstance(choice, back_ends.BackEnd):
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
    if report.landlock_abi < landlock.LEAST_ABI_IN_VIEW:
        return "Sandboxes inside: as the kernel has it; without Landlock FIFOs outside can be written to."
    name = os.fsdecode(nesting.VARIABLE)
    return f"Sandboxes inside: not in views; {name}=1 allows them, and FIFOs outside too."


def _check_lines(check: Check, shown: set[str]) -> list[str]:
    """Return the lines of a check; a cure that was shown before is not repeated."""
    if check.works:
        return [f"  yes  {check.name:<{_COLUMN}}{check.detail}"]
    lines = [f"  no   {check.name:<{_COLUMN}}{check.blocker}"]
    if check.cure not in shown:
        lines.append(f"       {'':<{_COLUMN}}cure: {check.cure}")
        shown.add(check.cure)
    return lines


def _plans() -> dict[str, ViewPlan]:
    return back_ends.policies()


def _working_directory() -> bytes:
    try:
        return os.getcwdb()
    except OSError:
        return b"/"  # the folder was removed, and nothing is below it
