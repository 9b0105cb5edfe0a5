"""`execserver upgrade`: puts a newer file in the place of a running server or relay, whose streams go on.

It opens the file, finds the server by its socket (`upgrading.door` is the other side), and lets the kernel
say that both ends are the same user's.
"""

from __future__ import annotations

import array
import json
import os
import re
import socket
import struct
import sys

from execserver.arguments import Mistake, Program, read_table
from execserver.handover.program import ANSWER
from execserver.leaving import failure, until_left, write
from execserver.protocol.errors import os_error_text
from execserver.runtime_paths import UPGRADE_SOCKET

HELP = """\
Put a newer file in the place of a running server: its processes, terminals, sessions and connections go on.
Of a relay its connections and streams go on.

Usage: execserver upgrade [--pid <PID>] [FILE]

FILE is the new program; without it, the file that the server was started from, as it is now. It must belong
to the server's user or to root, and nobody else may write to it. It is asked first whether it can take over;
if not, nothing changes.

Options:
  --pid <PID>               The server, where several of yours are running.
  -h, --help                Print this text and exit.

Exit status: 0; 1 nothing was changed, and why is said; 2 wrong usage; 130 ^C: what was asked for goes on.
"""

_LISTED = re.compile(r"@execserver-upgrade-(\d{1,10})$")
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid
_ROOT = 0
_KEPT = ("sessions", "processes", "streams", "connections")
_WAIT_S = 120.0
_ANSWER_BYTES = 64 * 1024
_CONNECTED_S = 5.0
_INTERRUPTED = 130
_NOT_WAITED_FOR = "execserver: not waited for; the upgrade goes on, and the server's log says how it ends\n"


def main() -> int:
    """Upgrade a server; return 0, 1 when nothing was changed, 2 for wrong usage."""
    return until_left(_main)


def can_resume() -> int:
    """Say whether this program reads a version of a server's state and takes its arguments.

    `sys.argv` has the version, then the arguments.  Returns 0, or 1 and says why not.
    """
    return until_left(_can_resume)


def _main() -> int:
    program = Program(
        "execserver upgrade", read_table(HELP), lambda: HELP, takes_more=True, usage="[--pid <PID>] [FILE]"
    )
    parsed = program.parse(sys.argv[1:])
    if len(parsed.operands) > 1:
        raise program.mistaken(Mistake(f"unexpected argument '{parsed.operands[1]}' found"))
    given = parsed.options.get("--pid")
    if given is not None and not (given.isascii() and given.isdigit()):
        raise program.mistaken(Mistake(f"invalid value '{given}' for '--pid <PID>'"))
    file = parsed.operands[0] if parsed.operands else None
    sock = _server(None if given is None else int(given))
    with sock:
        _ask(sock, file)
        try:
            answer = _answer(sock)
        except KeyboardInterrupt:
            write(2, _NOT_WAITED_FOR)
            return _INTERRUPTED
    sys.stdout.write(answer)
    return 0


def _server(pid: int | None) -> socket.socket:
    """Return a connection to the server with a pid, or to the only one."""
    found = {each: sock for each in _pids() if pid in (None, each) and (sock := _connected(each))}
    if len(found) == 1:
        return found.popitem()[1]
    for sock in found.values():
        sock.close()
    if found:
        listed = ", ".join(str(each) for each in sorted(found))
        raise failure(f"several servers of yours are running: {listed}", "name one: --pid PID")
    which = "no server of yours" if pid is None else f"no server of yours with pid {pid}"
    raise failure(
        f"{which} can be upgraded here",
        "servers on stdio are started anew instead; one in another network namespace is "
        "reached by its service manager (`systemctl reload`, --upgrade-on-hup)",
    )


def _pids() -> list[int]:
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            names = [_LISTED.search(line.rstrip("\n")) for line in file]
    except OSError as error:
        raise failure(f"/proc/net/unix cannot be read: {os_error_text(error.errno or 0)}") from None
    return sorted({int(name[1]) for name in names if name})


def _connected(pid: int) -> socket.socket | None:
    """Return a connection to a server; None if who listens is another process, or somebody else's."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(_CONNECTED_S)
    try:
        sock.connect(UPGRADE_SOCKET % pid)
        data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        sock.close()
        return None
    peer, uid, _ = _CREDENTIALS.unpack(data)
    if peer == pid and os.geteuid() in (_ROOT, uid):
        return sock
    sock.close()
    return None


def _ask(sock: socket.socket, file: str | None) -> None:
    fds: list[int] = []
    if file is not None:
        try:
            fds = [os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)]
        except OSError as error:
            raise failure(f"{file}: {os_error_text(error.errno or 0)}") from None
        file = os.path.realpath(file)
    message = json.dumps({} if file is None else {"file": file}).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sock.sendmsg([message], rights)
    except OSError as error:
        raise failure(f"the request cannot be sent: {os_error_text(error.errno or 0)}") from None
    finally:
        for fd in fds:
            os.close(fd)


def _answer(sock: socket.socket) -> str:
    """Wait for what comes of it; return the text about it, or raise the Leave that says why not."""
    sock.settimeout(_WAIT_S)
    try:
        data = sock.recv(_ANSWER_BYTES)
    except OSError:
        raise failure("there was no answer in time", "look at its log") from None
    if not data:
        raise failure("the process ended during the upgrade", "look at its log")
    try:
        answer = json.loads(data)
        if "refused" in answer:
            raise failure(_printable(str(answer["refused"])))
        return _told(answer["upgraded"])
    except (ValueError, KeyError, TypeError):
        raise failure("the answer is none that this program understands") from None


def _told(facts: dict[str, object]) -> str:
    kept = ", ".join(f"{facts[name]} {name}" for name in _KEPT if name in facts)
    return _printable(
        f"upgraded from {facts['from']} to {facts['to']} in {facts['pauseMs']} ms; going on: {kept}\n"
    )


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


def _can_resume() -> int:
    from execserver.cli import check_resuming
    from execserver.dispatch import CODEX_SERVER, SERVER, VERBS, choose
    from execserver.handover.records import STATE_VERSION

    version, *arguments = sys.argv[1:] or ["none"]
    entry, words = choose(["execserver", *arguments])
    if entry == VERBS["relay"]:
        return _can_resume_relay(version, words)
    if version != str(STATE_VERSION):
        raise failure(f"this program reads version {STATE_VERSION} of a server's state, not {version[:20]}")
    if entry not in (SERVER, CODEX_SERVER):
        raise failure("these are no arguments of a server")
    # A library that is missing is a refusal now, and the kernel will have read the files.
    check_resuming(words, "codex exec-server" if entry == CODEX_SERVER else "execserver")
    sys.stdout.write(f"{ANSWER} {STATE_VERSION}\n")
    return 0


def _can_resume_relay(version: str, words: list[str]) -> int:
    from execserver.handover.relay_records import RELAY_STATE_VERSION
    from execserver.verbs.relay import check_resuming

    if version != str(RELAY_STATE_VERSION):
        raise failure(
            f"this program reads version {RELAY_STATE_VERSION} of a relay's state, not {version[:20]}"
        )
    check_resuming(words)
    sys.stdout.write(f"{ANSWER} {RELAY_STATE_VERSION}\n")
    return 0
