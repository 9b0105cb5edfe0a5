"""The keeper: the process that a server with --survive-crash is started by, and started again by.

It holds a copy of every descriptor that must outlive the server, and knows nothing of what they mean: what
the server was doing is in memory files among them.  It is also who inherits the server's zygotes.  It has no
name that anybody could connect to, only a socket pair whose other end is the server's.

When a server is killed, the next one gets everything and goes on.  A server that ends by itself ends the
keeper, and so does one that cannot be started, or that is killed too often.  With the keeper everything ends:
the server sees the end of its socket, and zygotes see that of theirs.  Standard library only.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import os
import select
import time

from execserver.leaving import CANNOT, write
from execserver.own_process import raise_open_files_limit
from execserver.survival import messages
from execserver.survival.keeping import HELD, KEEPER_VARIABLE
from execserver.zygote.groups import process_stat
from execserver.zygote.launch import EVERY_SIGNAL
from execserver.zygote.libc import Libc
from execserver.zygote.reaper import end_all_children, own_children, reap_ended

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_READY_S = 60.0  # for a server that goes on, until it serves
_PASSED_ON = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP)
_SIGKILL = 9
_ENDED_EARLY = "the next server was told to end before it served; everything is ended now\n"


def keep(command: Sequence[str], environ: Mapping[str, str], most_restarts: int, within_s: float) -> int:
    """Start a server, and again each time it is killed; return the exit status once it has ended.

    `command` starts this program as a server.  After so many restarts within so many seconds one more kill
    ends everything.  Raises OSError if nothing can be started.
    """
    libc = Libc()
    libc.set_undumpable()  # commands must not reach what is held here by /proc
    libc.set_child_subreaper()
    return _Keeper(command, environ, most_restarts, within_s).run()


class _Keeper:
    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], most_restarts: int, within_s: float
    ) -> None:
        self._command = command
        self._environ = dict(environ)
        self._address = self._environ.get("NOTIFY_SOCKET", "")
        # What it says of us holds for a server whose words we pass on.
        if self._environ.get("WATCHDOG_PID") == str(os.getpid()):
            del self._environ["WATCHDOG_PID"]
        self._most_restarts, self._within_s = most_restarts, within_s
        self._held: dict[int, int] = {}
        self._zygotes: dict[int, int] = {}  # pid to key
        self._restarts: list[float] = []
        self._is_stopping = self._is_deserted = False
        self._has_served = self._is_ready = False
        self._wakeup, self._woken_by = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> int:
        _signal.set_wakeup_fd(self._woken_by, warn_on_full_buffer=False)
        ignored = [one for one in _PASSED_ON if _signal.getsignal(one) is _signal.SIG_IGN]
        for number in (*_PASSED_ON, _signal.SIGCHLD):
            if number not in ignored:
                _signal.signal(number, lambda number, frame: None)
        self._ignored = ignored
        try:
            return self._serve()
        finally:
            # Each zygote ends what is its own; who is left then is ours.
            for fd in self._held.values():
                os.close(fd)
            end_all_children()

    def _serve(self) -> int:
        cause = ""
        while True:
            status = self._lifetime(cause)
            if status == 0 or self._is_stopping or not self._has_served:
                return self._exit_status(status)
            cause = _told(status)
            now = time.monotonic()
            self._restarts = [one for one in self._restarts if now - one < self._within_s]
            if len(self._restarts) >= self._most_restarts:
                often = f"{len(self._restarts) + 1} times in {self._within_s:g} s"
                write(2, f"Error: the server ended {often}, at last by {cause}; everything is ended now\n")
                return 1
            self._restarts.append(now)

    def _exit_status(self, status: int) -> int:
        number = status & 0x7F
        if self._is_stopping and number:
            return 0  # the keeper was asked to end, and with it everything has
        return 128 + number if number else os.waitstatus_to_exitcode(status)

    def _lifetime(self, cause: str) -> int:
        """Start a server, do what it asks for, and return its wait status."""
        ours, theirs = messages.line()
        pid = self._started(theirs)
        theirs.close()
        raise_open_files_limit()  # a server that goes on knows the one that commands have
        try:
            self._hand_over(ours, cause)
            status = self._attend(ours, pid, None if not cause else time.monotonic() + _READY_S)
            while self._take(ours):  # what it has said before its end
                pass
            if cause and not self._is_ready and (status == 0 or self._is_stopping):
                write(2, _ENDED_EARLY)
        except messages.BadMessage as error:
            # What is not held cannot be kept: better that all ends now, and says why.
            write(2, f"Error: the keeper of the server cannot go on: {error}\n")
            self._is_stopping = True
            status = CANNOT << 8
        finally:
            ours.close()
        return status

    def _started(self, theirs: _socket.socket) -> int:
        number = theirs.fileno()
        return os.posix_spawn(
            self._command[0],
            list(self._command),
            {**self._environ, KEEPER_VARIABLE: str(number)},
            file_actions=[(os.POSIX_SPAWN_DUP2, number, number)],
            setsigmask=HELD,
            setsigdef=[each for each in EVERY_SIGNAL if each not in self._ignored],
        )

    def _hand_over(self, sock: _socket.socket, cause: str) -> None:
        keys = list(self._held)
        try:
            for at in range(0, len(keys), messages.MOST_DESCRIPTORS):
                some = keys[at : at + messages.MOST_DESCRIPTORS]
                messages.send(sock, messages.HOLD, some, [self._held[key] for key in some])
            messages.send(sock, messages.BEGIN, text=cause.encode())
        except OSError:
            pass  # it has ended, which is seen next

    def _attend(self, sock: _socket.socket, pid: int, until: float | None) -> int:
        """Do what a server asks for until it has ended; return its wait status."""
        self._is_ready = False
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        while True:
            late = until is not None and not self._is_ready
            left = max(0.0, until - time.monotonic()) if until is not None and late else None
            ready = [fd for fd, _ in poll.poll(None if left is None else left * 1000 + 1)]
            if left == 0.0:
                os.kill(pid, _SIGKILL)  # not reaped yet, so the number is its own
                until = None
            if sock.fileno() in ready and not self._take(sock):
                poll.unregister(sock)
            if self._wakeup in ready:
                self._pass_on(pid)
                status = self._reap(pid)
                if status is not None:
                    return status

    def _take(self, sock: _socket.socket) -> bool:
        """Do what one message asks for; return False when none can follow.  Raises BadMessage."""
        message = messages.receive(sock)
        if message is None:
            return False
        kind, numbers = message.kind, message.numbers
        if kind == messages.HOLD:
            for key, fd in zip(numbers, message.fds, strict=True):
                self._drop(key)
                self._held[key] = fd
        elif kind == messages.ZYGOTE:
            self._zygotes[numbers[0]] = numbers[1]
            self._held[numbers[1]] = message.fds[0]
        elif kind == messages.DROP:
            for key in numbers:
                self._drop(key)
        elif kind == messages.DROP_BELOW:
            for key in [key for key in self._held if 0 < key < numbers[0]]:
                self._drop(key)
        elif kind == messages.READY:
            self._is_ready = self._has_served = True
        elif kind == messages.TELL:
            self._tell(message.text)
        return True

    def _drop(self, key: int) -> None:
        fd = self._held.pop(key, None)
        if fd is not None:
            os.close(fd)
        for pid in [pid for pid, its in self._zygotes.items() if its == key]:
            # One that is ours counts until it was reaped: how it ended says whether it has left something.
            if pid not in own_children():
                del self._zygotes[pid]

    def _pass_on(self, pid: int) -> None:
        """Pass the signals on that have come."""
        try:
            numbers = os.read(self._wakeup, 4096)
        except BlockingIOError:
            return
        for number in dict.fromkeys(numbers):
            if number in _PASSED_ON:
                self._is_stopping = True  # also where the server dies of it, since it has only begun
                os.kill(pid, number)

    def _reap(self, server: int) -> int | None:
        """Reap what has ended; return the wait status of the server if that is among it."""
        found = None
        for pid, status, _ in reap_ended():
            # A zygote ends its descendants, unless it is killed: then they come to us.
            self._is_deserted |= self._zygotes.pop(pid, None) is not None and status != 0
            if pid == server:
                found = status
        if self._is_deserted:
            self._end_deserted(server)
        return found

    def _end_deserted(self, server: int) -> None:
        """Kill one round of what a zygote has left; what these leave behind is found in the next round."""
        own_session = os.getsid(0)
        deserted = [
            pid
            for pid in own_children()
            if pid != server and pid not in self._zygotes and _session_of(pid) != own_session
        ]
        for pid in deserted:
            _kill(pid)
        self._is_deserted = bool(deserted)

    def _tell(self, text: bytes) -> None:
        address = self._address
        address = f"\0{address[1:]}" if address.startswith("@") else address
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        sock.setblocking(False)
        try:
            sock.sendto(text, address)
        except OSError:
            pass  # it is gone, or full
        finally:
            sock.close()


def _told(status: int) -> str:
    number = status & 0x7F
    return f"signal {number}" if number else f"exit status {os.waitstatus_to_exitcode(status)}"


def _session_of(pid: int) -> int:
    stat = process_stat(pid)
    return 0 if stat is None else stat[3]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, _SIGKILL)
    except OSError:
        pass  # it belongs to another user by now
