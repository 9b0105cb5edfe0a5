"""Starts a program as another user and with refusals: `-m tests.support.refused HOW UID -- PROGRAM ...`."""

from __future__ import annotations

import os
import sys

from tests.support.roots import OLD_KERNEL, become, hide_calls
from tests.support.ways import refuse_user_namespaces


def main() -> None:
    """Take on the limits and become the program."""
    how, user, _, *program = sys.argv[1:]
    refuse_user_namespaces(how)
    become(int(user))
    if how == "calls":
        hide_calls(OLD_KERNEL)
    os.execvp(program[0], program)


main()
