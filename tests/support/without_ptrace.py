"""Starts a program where nothing may be traced, as in containers: `-m tests.support.without_ptrace NAME`."""

from __future__ import annotations

import os
import sys

from execserver.sandbox.kernel import privileges, seccomp
from execserver.sandbox.kernel.seccomp_table import ALWAYS
from execserver.sandbox.kernel.syscalls import Kernel


def main() -> None:
    """Take on the limit and become the program."""
    kernel = Kernel()
    privileges.no_new_privileges(kernel)
    seccomp.install_program(kernel, seccomp.program([("ptrace", ALWAYS, ())], kernel.machine))
    os.execvp(sys.argv[1], sys.argv[1:])


main()
