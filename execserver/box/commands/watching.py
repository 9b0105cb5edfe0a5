"""Following a kept command: attaching to it, waiting for its end, a signal for it.

Only `attach` writes to it, and only if nobody else does or this person takes over.  It goes on afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from execserver.box.commands.kept import SHELL_MS, find, has_ended, short_name
from execserver.box.commands.notices import tell_end, telling
from execserver.box.commands.running import open_client
from execserver.box.commands.signalled import status_of, told_status
from execserver.box.connecting import Box, asking, patience, reaching
from execserver.box.manner import LOST, Manner, Predict, both_ends
from execserver.box.shown import shown
from execserver.client.errors import ExecServerError, OutputGap
from execserver.client.rules.event_log import UNKNOWN_EXIT, Exited
from execserver.client.rules.recovery import SessionState
from execserver.leaving import write

if TYPE_CHECKING:
    from execserver.client.client import ExecServerClient
    from execserver.client.process import RemoteProcess
    from execserver.protocol.watching import SessionProcess

_LEAVE_S: Final = 2.0
_SCREEN_BYTES: Final = 256 * 1024
_CLEAR: Final = b"\x1b[!p\x1b[H\x1b[2J"


def attach(box: Box, name: str, *, take: bool, predict: Predict) -> int:
    """Show a process, and write to it if nobody else does; return the exit status for this program."""
    client = lasting_client(box)
    try:
        found = find(client, box, name)
        with asking(box):
            # Who follows it already may be writing; that cannot be seen.
            alone = found.watchers == 0 and not any(
                session.attached and session.session_id == found.session_id
                for session in client.session_list()
            )
            after_seq = _recent(client, found)
            process = client.watch_process(
                found.session_id,
                found.process_id,
                after_seq=after_seq,
                take=found.running and (take or alone),
            )
        return _converse(client, box, found, process, predict)
    finally:
        leave(client)


def _recent(client: ExecServerClient, found: SessionProcess) -> int:
    """Return after which seq to show: a screen is made of the latest output, and a disk may hold more."""
    if not client.extensions.process_log:
        return 0
    process = client.watch_process(found.session_id, found.process_id, after_seq=0, collect_output=False)
    page = process.log(max_bytes=1, tail_bytes=_SCREEN_BYTES)
    process.unwatch()
    return max(0, page.chunks[0].seq - 1) if page.chunks else 0


def _converse(
    client: ExecServerClient, box: Box, found: SessionProcess, process: RemoteProcess, predict: Predict
) -> int:
    # Late: `run` uses this module, too, and loads the first while the box is busy, the other for a terminal.
    from execserver.box.commands.conversation import Conversation
    from execserver.box.terminal import Terminal

    at_terminal = found.tty and both_ends()
    if at_terminal:
        write(1, _CLEAR.decode())
    manner = Manner(
        box.name,
        Terminal(0) if at_terminal else None,
        tty=found.tty,
        takes_input=at_terminal or (process.writer and found.running),
        escapes=at_terminal,
        can_detach=True,
        hangs_up=True,
        repaints=process.writer and found.running,
        predict=predict,
    )
    if found.running and not process.writer:
        write(2, "execserver: somebody else writes to it; --take takes the keyboard, ^C ends this\n")
    ending = Conversation(client, process, manner).run()
    if ending.note:
        write(2, f"Error: {shown(box.name, 200)}: {ending.note}\n")
    tell_end(ending.ended)
    if ending.detached and found.running:
        write(2, f"execserver: {short_name(found)} goes on; `execserver attach` comes back to it\n")
    return told_status(client, found.process_id, ending.status) if found.tty else ending.status


def wait(box: Box, name: str) -> int:
    """Wait for the end of a process; return its exit status."""
    client = lasting_client(box)
    try:
        found = find(client, box, name)
        if not found.running:
            tell_end(found.ended)
            return _status(status_of(found))
        with asking(box):
            process = client.watch_process(found.session_id, found.process_id, after_seq=0)
        with reaching(box), telling(client, box.name):
            exited = _exit_of(process)
        tell_end(exited.ended if exited else None)
        status = _status(exited.code if exited else None)
        return told_status(client, found.process_id, status) if found.tty else status
    finally:
        leave(client)


def _exit_of(process: RemoteProcess) -> Exited | None:
    while True:
        try:
            event = process.next_event()
        except OutputGap:
            continue
        if isinstance(event, Exited):
            return event
        if event is None:
            return None


def _status(code: int | None) -> int:
    return LOST if code is None or code == UNKNOWN_EXIT else code & 0xFF


def kill(box: Box, name: str, signal_name: str) -> int:
    """Send a signal to the group of a process; forget one that has ended.  Return 0.  Raises Leave."""
    client = open_client(box)
    try:
        found = find(client, box, name)
        if not found.running:
            raise has_ended(found)
        with asking(box):
            process = client.watch_process(found.session_id, found.process_id, after_seq=0)
            process.signal(signal_name)
        return 0
    finally:
        client.detach()


def lasting_client(box: Box) -> ExecServerClient:
    """Return a client whose session outlives a long loss, since what it follows does."""
    return open_client(box, keep_ms=SHELL_MS, resume_window=SHELL_MS / 1000)


def leave(client: ExecServerClient) -> None:
    """Close a client whose session is not to outlive it."""
    try:
        if client.state is SessionState.OPEN and client.kept is not None:
            with patience(_LEAVE_S):
                client.session_keep(0)
    except ExecServerError:
        pass  # lost just now, or frozen: the box ends it in its time
    client.close()
