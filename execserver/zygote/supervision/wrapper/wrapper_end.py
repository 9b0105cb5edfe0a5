"""The end that exec wrappers speak to (shell tool contract), as an exec source.

All processes of a shell inherit one socket.  Through it a wrapper sends one end of a stream of its own, then

    request -> Run | Deny -> end of the stream
    request -> Escalate -> its descriptors -> exit code -> end of the stream

Escalate offers to take signals.  A wrapper that knows of it says so beside its descriptors, then sends each
signal that it gets, and the exit code comes with the signal that ended the program, if one did.  To all
others, the reference's among them, nothing else changes.

The inherited socket is of type SOCK_SEQPACKET.  Wrappers made for datagrams cannot tell the difference, and
through one of a pair of datagram sockets any named socket of the host could be reached.

A stream that brings anything else is closed, with everything that came on it, and only the one exec behind it
fails: the wrapper gets no answer and exits with 1.  The same happens to a wrapper that owes a message for
PATIENCE_S.  At most UNHEARD_AT_ONCE streams without a request are read at a time.  While there are that many,
all requests together take HELD_BYTES, or the exec broker is full, further wrappers wait in the socket.
"""

from __future__ import annotations

import _socket
import os
import select
import stat
import struct
import sys
from _json import encode_basestring_ascii as _quoted

from execserver.protocol.json_text import NotJson, parse
from execserver.zygote.supervision.stand_in.signals import CATCHABLE_STOPS, SIGSTOP, handling, send
from execserver.zygote.supervision.trap.callers import INSIDE, OUTSIDE, Caller, Execution, Means
from execserver.zygote.supervision.wrapper.frames import (
    FrameError,
    WrapperFrameReader,
    receive_rights,
    send_frame,
)
from execserver.zygote.supervision.wrapper.messages import Refused, read_numbers, read_request, read_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.zygote.supervision.event_loop import EventLoop
    from execserver.zygote.supervision.exec_broker import ExecBroker

UNHEARD_AT_ONCE = 16  # each may bring a frame of 8 MiB more than HELD_BYTES
HELD_BYTES = 64 * 1024 * 1024
PATIENCE_S = 10.0  # a wrapper that is not stopped sends what it owes within a millisecond


_HANDSHAKE_BYTES = 8192
_NOT_WAITING = _socket.MSG_DONTWAIT
_KIND = (39, _socket.SO_TYPE, _socket.SO_ACCEPTCONN)  # the first is SO_DOMAIN
_KIND_OF_STREAM = [_socket.AF_UNIX, _socket.SOCK_STREAM, 0]
_PEER = struct.Struct("=iII")  # process, user, group
_SO_PEERGROUPS = 59
_GROUPS_BYTES = 1024
_SIGNAL_BYTES = 64  # of a message that says a signal
_DENIED = "Execution denied: "  # every wrapper writes it by itself in front of the reason
_PATH_ONLY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class WrapperEnd:
    """Takes wrappers off the other end of the inherited socket, which it owns, for the exec broker."""

    def __init__(self, sock: _socket.socket, broker: ExecBroker, loop: EventLoop) -> None:
        self._sock = sock
        self._broker = broker
        self._loop = loop
        self._wrappers: set[_Wrapper] = set()
        self._is_open = True
        self._is_watched = False
        self.go_on()

    def go_on(self) -> None:
        """Listen if there is room, else do not; to be called once per turn."""
        wanted = self._is_open and not self._broker.is_full and self._has_room()
        if wanted != self._is_watched:
            if wanted:
                self._loop.add(self._sock.fileno(), self._take)
            else:
                self._loop.drop(self._sock.fileno())
            self._is_watched = wanted

    def close(self) -> None:
        """Listen no more, and close the streams without a request; the broker ends the others."""
        self._end()
        for wrapper in [one for one in self._wrappers if not one.is_heard]:
            wrapper.end()

    def _has_room(self) -> bool:
        # Checked before a stream is taken off: what it sends afterwards is limited by its one frame.
        unheard = sum(not wrapper.is_heard for wrapper in self._wrappers)
        return unheard < UNHEARD_AT_ONCE and sum(one.size for one in self._wrappers) < HELD_BYTES

    def _take(self) -> None:
        try:
            data, descriptors = receive_rights(self._sock, _HANDSHAKE_BYTES, _NOT_WAITING)
        except BlockingIOError:
            return
        except OSError:
            self._end()
            return
        # A zero-length message is no end: a command must not be able to close the socket for all others.
        if not data and not descriptors and self._is_at_end():
            self._end()
            return
        stream = _stream(descriptors)
        if stream is not None:
            try:
                self._wrappers.add(_Wrapper(stream, self._loop, self._broker.arrive, self._wrappers.discard))
            except OSError:
                stream.close()  # no free descriptor for its eventfd

    def _is_at_end(self) -> bool:
        """Return whether the socket has ended; an empty message looks the same to a receive."""
        # Registered for nothing, poll still reports POLLHUP.
        poll = select.poll()
        poll.register(self._sock.fileno(), 0)
        return bool(poll.poll(0))

    def _end(self) -> None:
        """Listen no more; wrappers that have sent their stream are still served."""
        if self._is_open:
            self._is_open = False
            self.go_on()
            self._sock.close()


class _Wrapper(Caller):
    """One wrapper at the other end of a stream, which this object owns."""

    def __init__(
        self,
        stream: _socket.socket,
        loop: EventLoop,
        arrive: Callable[[Caller, Execution], None],
        ended: Callable[[_Wrapper], None],
    ) -> None:
        """Watch the stream; raises OSError.

        `arrive` is called when the request has come, if it comes, and `ended` when everything is closed.
        """
        # The broker watches this one.  The stream has a callback of its own, which reads what comes on it.
        self.alive_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.is_heard = False
        self._stream = stream
        self._loop = loop
        self._arrive = arrive
        self._ended = ended
        self._reader = WrapperFrameReader()
        self._env: list[bytes] = []
        self._env_bytes = 0
        self._workdir = b""
        self._folder = -1
        self._then: Callable[[Means | None], None] | None = None
        self._passes_signals = False
        self._program = 0  # while it runs in place of the wrapper
        self._is_open = True
        loop.add(stream.fileno(), self._receive)
        self._expect(lambda: not self.is_heard)

    @property
    def size(self) -> int:
        """Number of bytes that are held for it."""
        return self._reader.held_bytes + self._env_bytes

    def look(self, file: bytes) -> int:
        """Return what is at the path; INSIDE for a wrapper whose user or groups are not ours."""
        found = super().look(file)
        return INSIDE if found == OUTSIDE and not _is_ours(self._stream) else found

    def run(self) -> None:
        """Let the wrapper become the program."""
        self._answer(b'{"action":"Run"}')

    def deny(self, text: str) -> None:
        """Let the wrapper print why the program may not run, and exit with 1."""
        reason = _quoted(text.removeprefix(_DENIED))
        self._answer(f'{{"action":{{"Deny":{{"reason":{reason}}}}}}}'.encode())

    def exit(self, code: int) -> None:
        """Let the wrapper exit with a code."""
        self._answer(b'{"exit_code":%d}' % code)

    def replaced(self, program: int) -> None:
        """Pass signals to that program from now on."""
        self._program = program

    def finish(self, status: int) -> None:
        """Let the wrapper end as the program has ended."""
        self._program = 0  # its number may be that of another process by now
        if self._passes_signals and os.WIFSIGNALED(status):
            signum = os.WTERMSIG(status)
            self._answer(b'{"exit_code":%d,"signal":%d}' % (128 + signum, signum))
        else:
            super().finish(status)

    def fail(self, number: int) -> None:
        """Leave the wrapper without an answer: the protocol has no errno."""
        self.end()

    def collect(self, then: Callable[[Means | None], None]) -> None:
        """Ask for the descriptors of the program; `then` gets None if its folder does not exist outside."""
        # Opened first: once the wrapper has given its descriptors away, it can no longer run the program.
        try:
            self._folder = os.open(self._workdir, _PATH_ONLY)
        except OSError:
            then(None)
            return
        self._then = then
        if self._send(b'{"action":"Escalate","signals":true}'):
            self._expect(lambda: self._then is not None)

    def gone(self) -> int:
        """Close everything; what killed a wrapper is not known."""
        self.end()
        return 0

    def end(self) -> None:
        """Close everything; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            self._loop.drop(self._stream.fileno())
            self._stream.close()
            self._reader.close()
            os.close(self.alive_fd)
            self._close_folder()
            self._then = None
            self._ended(self)

    def _answer(self, text: bytes) -> None:
        if self._is_open:
            self._send(text)
            self.end()

    def _send(self, text: bytes) -> bool:
        """Send a short message; a wrapper that leaves no room for it counts as gone."""
        # All messages to it are short, and it reads each before the next one is due.
        try:
            send_frame(self._stream, text, (), _NOT_WAITING)
        except OSError:
            self._is_gone()
            return False
        return True

    def _expect(self, is_awaited: Callable[[], bool]) -> None:
        """Abandon the wrapper if it still owes a message when its time is over."""

        def look() -> None:
            if self._is_open and is_awaited():
                self._is_gone()

        self._loop.after(PATIENCE_S, look)

    def _receive(self) -> None:
        try:
            text = self._reader.read(self._stream, _NOT_WAITING)
            if text is not None:
                # Halves: bytes that are not UTF-8 travel as single surrogates, which JSON proper refuses.
                self._take(parse(text, halves=True))
        except BlockingIOError:
            pass
        except (OSError, FrameError, NotJson, Refused, UnicodeEncodeError):
            # The last one: a text with halves of characters that stand for no byte.
            self._is_gone()

    def _take(self, message: object) -> None:
        if self._then is not None:
            self._take_descriptors(message)
        elif self._program and self._passes_signals:
            self._pass_on(read_signal(message))
        elif self.is_heard:  # a request, and no answer yet
            raise Refused("nothing was asked")
        else:
            self._take_request(message)

    def _take_request(self, message: object) -> None:
        execution, self._env = read_request(message)
        if self._reader.descriptors:
            raise Refused("descriptors that nobody asked for")
        # 64 bytes more for each entry, about what Python needs for it: many short ones must count, too.
        self._env_bytes = sum(map(len, self._env)) + 64 * len(self._env)
        self._workdir = execution.workdir
        self.is_heard = True
        if execution.file:
            self._arrive(self, execution)
        else:
            self.run()  # its exec fails with ENOENT, as without a wrapper

    def _take_descriptors(self, message: object) -> None:
        numbers = read_numbers(message, len(self._reader.descriptors))
        then, self._then = self._then, None
        assert then is not None
        # From here on `Means` owns the folder and the descriptors.
        folder, self._folder = self._folder, -1
        descriptors = dict(zip(numbers, self._reader.take_descriptors(), strict=True))
        self._passes_signals = isinstance(message, dict) and message.get("signals") is True
        self._reader.limit = _SIGNAL_BYTES
        then(Means(self._env, descriptors, folder))

    def _pass_on(self, signum: int) -> None:
        """Give a signal to the program outside, which has no terminal: a stop that it does not handle."""
        if self._reader.descriptors:
            raise Refused("descriptors that nobody asked for")
        if signum in CATCHABLE_STOPS:
            ignored, caught = handling(self._program)
            if ignored >> signum - 1 & 1:
                return
            # Its process group has no parent that could continue it, and so the kernel would not stop it.
            signum = signum if caught >> signum - 1 & 1 else SIGSTOP
        send(self._program, signum)

    def _is_gone(self) -> None:
        """Take the wrapper for one that has ended; it may also have broken the protocol."""
        if not self._is_open:
            return
        if self.is_heard:
            # Not ended here: the broker may hold it, with a prompt or a program.  It watches this descriptor
            # and calls `gone`.
            self._loop.drop(self._stream.fileno())
            os.eventfd_write(self.alive_fd, 1)
        else:
            self.end()

    def _close_folder(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1


def _is_ours(stream: _socket.socket) -> bool:
    """Return whether whoever made a stream has this process's user and groups."""
    _, uid, gid = _PEER.unpack(stream.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _PEER.size))
    try:
        packed = stream.getsockopt(_socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return False  # more groups than a program is likely to have
    groups = {int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4)}
    return (uid, gid) == (os.getuid(), os.getgid()) and groups == set(os.getgroups())


def shell_variables(number: int, wrapper: bytes) -> list[bytes]:
    """Return the variables that make a patched shell start the wrapper, with the socket's number for it."""
    return [
        b"CODEX_ESCALATE_SOCKET=%d" % number,
        b"BASH_EXEC_WRAPPER=" + wrapper,
        b"EXEC_WRAPPER=" + wrapper,
    ]


def _stream(descriptors: list[int]) -> _socket.socket | None:
    """Return the one stream that came, or close everything that did."""
    if len(descriptors) == 1 and stat.S_ISSOCK(os.fstat(descriptors[0]).st_mode):
        # The type that Python is told here may be wrong, which does no harm: the kernel is asked next.
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, descriptors[0])
        if [sock.getsockopt(_socket.SOL_SOCKET, name) for name in _KIND] == _KIND_OF_STREAM:
            return sock
        sock.close()
        return None
    for descriptor in descriptors:
        os.close(descriptor)
    return None
