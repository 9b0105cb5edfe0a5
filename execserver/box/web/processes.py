"""The processes of a box as a page sees them: listed, started, signalled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from execserver.box.commands import kept
from execserver.box.commands.running import Command, login_shell
from execserver.box.commands.running import start as start_command
from execserver.box.web.failing import BUSY, NOT_FOUND, WRONG, CallFailed
from execserver.box.web.terminals import Terminal
from execserver.client.policies import POLICIES
from execserver.protocol.process import RecordedStreams
from execserver.protocol.watching import SessionProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from execserver.box.web.link import Link
    from execserver.box.web.reading import Params
    from execserver.client.client import ExecServerClient
    from execserver.client.process import RemoteProcess

MAX_LISTED: Final = 1000
MAX_TERMINALS: Final = 64
_TERM: Final = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
_RECORDED: Final = tuple(each.value for each in RecordedStreams)
_SIGNALS: Final = ("HUP", "INT", "QUIT", "TERM", "KILL", "USR1", "USR2", "CONT", "STOP", "WINCH")


def all_of(client: ExecServerClient) -> tuple[SessionProcess, ...]:
    """Return the processes that the box shows to this person.  Raises ExecServerError.

    A server without kept sessions shows those of its connection only.
    """
    if client.extensions.kept_sessions:
        return client.session_processes()[:MAX_LISTED]
    if not client.extensions.process_list:
        return ()
    return tuple(
        SessionProcess(
            session_id=client.session_id,
            process_id=each.process_id,
            argv=each.argv,
            pid=each.pid,
            tty=each.tty,
            running=each.running,
            exit_code=each.exit_code,
            started_at_ms=each.started_at_ms,
            cpu_time_ms=each.cpu_time_ms,
            rss_bytes=each.rss_bytes,
            watchers=0,
        )
        for each in client.process_list()[:MAX_LISTED]
    )


def find(client: ExecServerClient, process_id: str) -> SessionProcess:
    """Return one process.  Raises CallFailed, ExecServerError."""
    for each in all_of(client):
        if each.process_id == process_id:
            return each
    raise CallFailed("there is no such process any more", NOT_FOUND)


def start(link: Link, params: Params) -> dict[str, object]:
    """Start a command, or the login shell."""
    argv, name, sandbox = params.words("argv"), params.maybe_text("name", 64), params.maybe_text("sandbox")
    if sandbox is not None and sandbox not in POLICIES:
        raise CallFailed(f"sandbox is none of {', '.join(POLICIES)}", WRONG)
    record = params.maybe_text("record")
    if record not in (None, *_RECORDED):
        raise CallFailed(f"record is none of {', '.join(_RECORDED)}", WRONG)
    if name is not None and not kept.is_process_name(name):
        raise CallFailed("a name is made of letters, digits, `.`, `_` and `-`, 64 at most", WRONG)
    make_room(link)
    with link.using() as client:
        tty = params.flag("tty", argv is None)
        command = Command(
            argv or (login_shell(client), "-l"),
            cwd=params.maybe_path("cwd"),
            env=_TERM if tty else {},
            sandbox=sandbox,
            tty=tty,
            pipe_stdin=not tty,
            record=record,
        )
        if params.flag("keep"):
            return {"process_id": _start_kept(link, client, command, name)}
        process = start_command(client, link.box, command, name if client.extensions.kept_sessions else None)
        Terminal(link, process.process_id, process, tty=tty, own=True)
        return {"process_id": process.process_id}


def _start_kept(link: Link, client: ExecServerClient, command: Command, name: str | None) -> str:
    kept.require(client, link.box)
    own = link.open_kept()
    try:
        process_id = start_command(own, link.box, command, name).process_id
    except BaseException:
        own.close()
        raise
    own.detach()
    return process_id


def make_room(link: Link) -> None:
    """Forget terminals that have ended and that nobody looks at.  Raises CallFailed if 64 are left."""
    for terminal in list(link.terminals.values()):
        if terminal.is_over and not terminal.channels:
            terminal.close()
    if len(link.terminals) >= MAX_TERMINALS:
        raise CallFailed(f"{MAX_TERMINALS} terminals are in use", BUSY, "close some of them")


def signal(link: Link, params: Params) -> dict[str, object]:
    """Send a signal to the group of a process."""
    name = params.text("signal", 16).upper().removeprefix("SIG")
    if name not in _SIGNALS:
        raise CallFailed(f"signal is none of {', '.join(_SIGNALS)}", WRONG)
    with link.using() as client:
        for process in following(link, client, params.text("process_id", 256)):
            process.signal("interrupt" if name == "INT" else name)
    return {}


def following(link: Link, client: ExecServerClient, process_id: str) -> Iterator[RemoteProcess]:
    """Yield a process to be asked for something; one that nobody looks at is watched meanwhile."""
    terminal = link.terminals.get(process_id)
    if terminal is not None:
        yield terminal.process
        return
    found = find(client, process_id)
    process = client.watch_process(found.session_id, process_id, after_seq=2**62, collect_output=False)
    try:
        yield process
    finally:
        process.unwatch()
