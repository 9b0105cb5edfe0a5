"""Where this server answers recorded sessions otherwise than the reference did, and why.

Outcomes are compared: the output of a call, or the message of its error.  `KNOWN` gives ours in the place of
the recorded one; the other functions take away what depends on the machine.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple


class Known(NamedTuple):
    """Why a session comes out otherwise, and how: recorded outcome -> ours."""

    reason: str
    ours: dict[str, str]


_NO_HELPER = "error: codex-linux-sandbox was required but not provided"
_FORBIDDEN = "Execution denied: Execution forbidden by policy\n"

KNOWN: dict[str, Known] = {
    "no-state-needs-helper": Known("the sandbox is our own, no helper is needed", {_NO_HELPER: "hi\n"}),
    "state-without-helper": Known("the sandbox is our own, no helper is needed", {_NO_HELPER: "hi\n"}),
    "state-helper-missing-on-disk": Known(
        "the sandbox is our own, a helper is accepted and not used",
        {"error: No such file or directory (os error 2)": "hi\n"},
    ),
    "unknown-method": Known(
        "the error names the method that is unknown",
        {"error: codex/sandbox-state/update": "error: method not found: foo/bar"},
    ),
    "escalated-argv0": Known(
        "the argv[0] of `exec -a` is kept", {" /proc/self/cmdline ": "myname /proc/self/cmdline "}
    ),
    "escalated-env-keeps-server-vars": Known(
        "a variable that the shell has unset stays unset", {"SERVER_ONLY=kept\n0\n": "1\n"}
    ),
    "escalated-killed-by-signal": Known(
        "who stands in for the program dies of the same signal, as inside of the sandbox", {"127\n": "137\n"}
    ),
    "relative-program-at-server-cwd": Known(
        "a relative program is looked for in the shell's folder", {"1\n": "ran\n0\n"}
    ),
    "prompt-client-error": Known(
        "there is no wrapper whose words could be shown",
        {
            "1\nError: failed to receive EscalateResponse\n\nCaused by:\n"
            "    socket closed while receiving frame header\n": (
                "Execution denied: nobody could be asked for permission\n1\n"
            )
        },
    ),
    "server-with-foreign-wrapper": Known(
        "the kernel tells of programs, so the wrapper that was given is not started",
        {"0\nLinux\n0\ndenied by probe: Execution forbidden by policy\n": (f"0\nLinux\n{_FORBIDDEN}0\n")},
    ),
}

# Output comes in the order of arrival; the reference gave all of stdout before all of stderr.
OTHER_ORDER = {
    *("alternatives-in-pattern", "big-env", "clean-stdout", "escalated-pipes-and-redirects", "forbidden"),
    *("login-default-and-flag", "matching-is-by-program-name", "output-stdout-and-stderr"),
    *("output-stdout-then-stderr", "preserve-program-paths", "prompt-cancel", "prompt-client-error"),
    *("prompt-dangerous-without-rule", "prompt-decline", "rules-several-files-strictest-wins"),
    *("server-with-foreign-wrapper", "unmatched-runs-inside"),
    "escalated-env",  # variables keep the order the shell gave them
}


def without_machine(session: str, outcome: str) -> str:
    """Return an outcome without what depends on the machine it happened on."""
    # Landlock refuses with the one, a read-only mount with the other; the shell or its locale quotes.
    outcome = outcome.replace("Read-only file system", "Permission denied")
    outcome = outcome.replace("\u2018", "'").replace("\u2019", "'")
    if session == "big-env":  # the size of the environment
        outcome = re.sub(r"^22\d{4}$", "<BYTES>", outcome, flags=re.MULTILINE)
    elif session == "rules-none":  # who runs it
        outcome = re.sub(rf"^(0|{os.getuid()})$", "<UID>", outcome, flags=re.MULTILINE)
    elif session == "login-default-and-flag":  # what the machine's own profile does, with `id` forbidden
        kept = [line for line in outcome.splitlines() if line.startswith("got ")]
        outcome = "\n".join(kept)
    elif session == "escalated-killed-by-signal":  # the number of the process, as the shell says it
        outcome = re.sub(r"^.*: line 1: +\d+ Killed .*\n", "", outcome, flags=re.MULTILINE)
    return outcome
