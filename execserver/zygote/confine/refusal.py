"""What stands for a refused command: a child that prints why, as the wire contract has it."""

from __future__ import annotations

import os

from execserver.zygote.confine import child
from execserver.zygote.confine.back_end import BackEnd
from execserver.zygote.confine.command import take_stdio

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import Mount
    from execserver.zygote.confine.back_end import Host
    from execserver.zygote.confine.child import Become
    from execserver.zygote.confine.command import Command
    from execserver.zygote.confinement import Confinement


class Refusal(BackEnd):
    """A line for the command's stderr, and its exit status."""

    is_quick = True
    needs_cwd = False  # the refusal is due even if there is no such folder

    def __init__(self, host: Host, confinement: Confinement) -> None:
        self._kernel = host.kernel
        self._text = confinement.refusal.encode()
        self._status = confinement.refusal_status

    def command(self, command: Command, covers: Sequence[Mount]) -> Become:
        """Return what a fork does to print the line in place of the command."""
        kernel, text, status = self._kernel, self._text, self._status
        return lambda report, _: _say(kernel, command, text, status, report)

    def unwatchable(self, is_notified: bool) -> str:
        """Return the refusal itself."""
        return os.fsdecode(self._text)


def _say(kernel: Kernel, command: Command, text: bytes, status: int, report: int) -> None:
    try:
        child.tie(kernel)
        child.check_starter(kernel, report)
        take_stdio(command)
        report = child.keep_only(kernel, report)
        child.tell_running()
        os.write(2, text + b"\n")
    except OSError as error:
        child.tell_failure(report, os.fsencode(error.strerror or "unknown error"))
    finally:
        os._exit(status)
