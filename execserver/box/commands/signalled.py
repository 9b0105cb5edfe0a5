"""Exit statuses of commands on a terminal, for which the contract reports 1 where a signal ended them.

A server of this project says which signal it was when it is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from execserver.box.connecting import patience
from execserver.client.errors import ExecServerError

if TYPE_CHECKING:
    from execserver.client.client import ExecServerClient
    from execserver.protocol.watching import SessionProcess

_BY_SIGNAL: Final = 128
_DOUBTFUL: Final = 1
_ANSWER_S: Final = 5.0


def status_of(process: SessionProcess) -> int | None:
    """Return the exit status of a process that has ended; None where nobody knows it."""
    number = None if process.ended is None else process.ended.signal
    if process.tty and process.exit_code == _DOUBTFUL and number is not None:
        return _BY_SIGNAL + number
    return process.exit_code


def told_status(client: ExecServerClient, process_id: str, status: int) -> int:
    """Return the status of a command that was on a terminal, or what its box says of it now."""
    if status != _DOUBTFUL or not client.extensions.kept_sessions:
        return status
    try:
        with patience(_ANSWER_S):
            found = client.session_processes()
    except ExecServerError:
        return status  # the box is lost by now
    ended = [status_of(each) for each in found if each.process_id == process_id and not each.running]
    return status if not ended or ended[0] is None else ended[0] & 0xFF
