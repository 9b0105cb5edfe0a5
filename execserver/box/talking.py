"""A command or a login shell on a box, from connecting to its exit status."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from execserver.box.connecting import Box
from execserver.box.conversation import Conversation
from execserver.box.manner import Manner
from execserver.box.running import Command, open_client, start
from execserver.box.shown import shown
from execserver.box.terminal import Terminal
from execserver.leaving import write

if TYPE_CHECKING:
    from execserver.client.client import ExecServerClient

_PLAIN_SHELL = "/bin/sh"


def run(box: Box, command: Command) -> int:
    """Run a command and return the exit status for this program.  Raises Leave."""
    client = open_client(box)
    try:
        return _talk(client, box, command, is_shell=False)
    finally:
        client.close()


def shell(box: Box, command: Command) -> int:
    """Run the login shell of the box's user in the place of `command.argv`; as `run`."""
    client = open_client(box)
    try:
        return _talk(client, box, command._replace(argv=(_login_shell(client), "-l")), is_shell=True)
    finally:
        client.close()


def _talk(client: ExecServerClient, box: Box, command: Command, *, is_shell: bool) -> int:
    process = start(client, box, command)
    terminal = Terminal(0) if command.tty and os.isatty(0) else None
    manner = Manner(
        box.name,
        terminal,
        tty=command.tty,
        takes_input=command.pipe_stdin or command.tty,
        escapes=is_shell,
        hangs_up=is_shell,
    )
    ending = Conversation(client, process, manner).run()
    if ending.note:
        write(2, f"Error: {shown(box.name, 200)}: {ending.note}\n")
    return ending.status


def _login_shell(client: ExecServerClient) -> str:
    info = client.server_info
    return info.shell.path if info is not None and info.shell.path.startswith("/") else _PLAIN_SHELL
