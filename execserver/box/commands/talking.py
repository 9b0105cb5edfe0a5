"""A command or a login shell on a box, from connecting to its exit status."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import gevent

from execserver.box.commands import kept
from execserver.box.commands.notices import tell_end
from execserver.box.commands.running import Command, login_shell, open_client, params_ahead, start
from execserver.box.commands.watching import leave
from execserver.box.connecting import Box
from execserver.box.manner import Manner
from execserver.box.shown import shown
from execserver.leaving import put, write

if TYPE_CHECKING:
    from execserver.box.terminal import Terminal
    from execserver.client.client import ExecServerClient
    from execserver.client.process import RemoteProcess
    from execserver.protocol.process import ExecParams


class Stay(NamedTuple):
    """How long the command goes on without a connection (None: as every session does), and its name."""

    keep_ms: int | None = None
    name: str | None = None


def run(box: Box, command: Command, stay: Stay) -> int:
    """Run a command and return the exit status for this program.  Raises Leave."""
    client = _open(box, stay, command)
    try:
        if stay.keep_ms is not None:
            kept.require(client, box)
        return _talk(client, box, command, stay)
    finally:
        leave(client)


def run_detached(box: Box, command: Command, stay: Stay) -> int:
    """Start a command that goes on by itself; print its name and return 0.  Raises Leave."""
    client = _open(box, stay._replace(keep_ms=stay.keep_ms or kept.DETACHED_MS))
    try:
        kept.require(client, box)
        process = start(client, box, command, stay.name)
    except BaseException:
        leave(client)
        raise
    client.detach()
    put(f"{stay.name or process.process_id[:8]}\n")
    return 0


def shell(box: Box, command: Command, stay: Stay) -> int:
    """Run the login shell of the box's user in the place of `command.argv`; as `run`."""
    stay = stay._replace(keep_ms=stay.keep_ms or kept.SHELL_MS) if box.can_resume else Stay()
    client = _open(box, stay)
    try:
        command = command._replace(argv=(login_shell(client), "-l"))
        return _talk(client, box, command, stay, is_shell=True)
    finally:
        leave(client)


def _open(box: Box, stay: Stay, command: Command | None = None) -> ExecServerClient:
    if stay.keep_ms is None:
        params = None if command is None or stay.name is not None else params_ahead(command)
        return open_client(box, None if params is None else partial(_asked_for, params))
    return open_client(box, keep_ms=stay.keep_ms, resume_window=stay.keep_ms / 1000)


def _asked_for(params: ExecParams) -> ExecParams:
    gevent.spawn(_load_conversation)  # while the box starts the command
    return params


def _talk(client: ExecServerClient, box: Box, command: Command, stay: Stay, *, is_shell: bool = False) -> int:
    keeps = client.extensions.kept_sessions
    # Loaded while the box starts the command: this greenlet gets its turn when that one waits for the answer.
    gevent.spawn(_load_conversation)
    process = start(client, box, command, stay.name if keeps else None)
    from execserver.box.commands.conversation import Conversation

    manner = Manner(
        box.name,
        _terminal() if command.tty and os.isatty(0) else None,
        tty=command.tty,
        takes_input=command.pipe_stdin or command.tty,
        escapes=is_shell,
        can_detach=keeps and stay.keep_ms is not None,
        hangs_up=is_shell,
        predict=command.predict,
    )
    ending = Conversation(client, process, manner).run()
    if ending.note:
        write(2, f"Error: {shown(box.name, 200)}: {ending.note}\n")
    tell_end(ending.ended)
    if ending.detached:
        _leave_running(client, box, stay.name, process)
    elif command.tty and not ending.note:
        from execserver.box.commands.signalled import told_status  # late: most commands have no terminal

        return told_status(client, process.process_id, ending.status)
    return ending.status


def _terminal() -> Terminal:
    from execserver.box.terminal import Terminal  # late: a short command has none

    return Terminal(0)


def _load_conversation() -> None:
    """Load it; what goes wrong is met again, and told, where it is used.  ^C is the main greenlet's."""
    try:
        import execserver.box.commands.conversation  # noqa: F401
    except KeyboardInterrupt as interrupt:
        gevent.get_hub().handle_system_error(KeyboardInterrupt, interrupt)
    except ImportError:
        return


def _leave_running(client: ExecServerClient, box: Box, name: str | None, process: RemoteProcess) -> None:
    client.detach()
    time = _lasting(client.kept.keep_ms if client.kept is not None else 0)
    way = f"execserver attach {shown(box.name, 200)} {name or process.process_id[:8]}"
    write(2, f"execserver: left running for {time}; come back with: {way}\n")


def _lasting(milliseconds: int) -> str:
    for size, unit in ((3600_000, "h"), (60_000, "min")):
        if milliseconds >= size and milliseconds * 10 % size == 0:
            return f"{milliseconds / size:g} {unit}"
    return f"{milliseconds / 1000:g} s"
