"""A zygote driven by hand: records over its socket, blocking, with a time limit."""

from __future__ import annotations

import _socket
import os
from collections.abc import Sequence
from types import TracebackType

from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.zygote.channel import receive_record, send_record
from execserver.zygote.launch import start_zygote
from execserver.zygote.records import (
    Exited,
    Failed,
    Record,
    Signalled,
    SignalRequest,
    SpawnRequest,
    Started,
    decode,
    encode,
)

WAIT_S = 20.0
PATH = b"PATH=/usr/bin:/bin"


class Zygote:
    """A started zygote; leaving the block closes its socket and reaps it."""

    def __init__(self, soft_nofile: int = 1024) -> None:
        process = start_zygote(ExecServerRuntimePaths.detect().zygote_command(), soft_nofile)
        self.pid = process.pid
        self.sock = _socket.socket(fileno=process.sock_fd)
        self.sock.settimeout(WAIT_S)
        self.early: list[Record] = []
        self._next_id = 0

    def __enter__(self) -> Zygote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()
        if self.pid:
            self.reap()

    def reap(self) -> int:
        """Wait for the zygote's end and return its wait status."""
        pid, self.pid = self.pid, 0
        return os.waitpid(pid, 0)[1]

    def send(self, record: Record, descriptors: Sequence[int] = ()) -> None:
        """Send one record."""
        send_record(self.sock, encode(record), descriptors)

    def receive(self) -> Record:
        """Return the next record."""
        received = receive_record(self.sock)
        assert received is not None, "the zygote has ended"
        data, descriptors = received
        assert descriptors == []
        return decode(data)

    def answer(self, request_id: int) -> Record:
        """Return the answer to a request; exits that come before it are kept in `early`."""
        while True:
            record = self.receive()
            if isinstance(record, Started | Failed | Signalled) and record.request_id == request_id:
                return record
            self.early.append(record)

    def exit_of(self, child_id: int) -> Exited:
        """Return the exit record of a child."""
        while True:
            for record in self.early:
                if isinstance(record, Exited) and record.child_id == child_id:
                    self.early.remove(record)
                    return record
            self.early.append(self.receive())

    def ask(
        self,
        *argv: bytes,
        env: Sequence[bytes] = (PATH,),
        cwd: bytes = b"/",
        arg0: bytes | None = None,
        slave: bytes = b"",
        descriptors: Sequence[int] = (),
        pipe_stdin: bool = False,
        deadline_ns: int = 0,
    ) -> Record:
        """Ask for a process and return the answer."""
        self._next_id += 1
        request = SpawnRequest(self._next_id, argv, env, cwd, arg0, slave, pipe_stdin, deadline_ns)
        self.send(request, descriptors)
        return self.answer(self._next_id)

    def run(self, *argv: bytes, stdin: bytes | None = None, **options: object) -> tuple[int, bytes, bytes]:
        """Run a process on pipes to its end; return wait status, stdout and stderr."""
        out, err = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        sent = [out[1], err[1]]
        if stdin is not None:
            into = os.pipe2(os.O_CLOEXEC)
            sent.insert(0, into[0])
            os.write(into[1], stdin)
            os.close(into[1])
        try:
            started = self.ask(*argv, descriptors=sent, pipe_stdin=stdin is not None, **options)  # type: ignore[arg-type]
        finally:
            for descriptor in sent:
                os.close(descriptor)
        texts = read_to_end(out[0]), read_to_end(err[0])
        assert isinstance(started, Started), started
        return self.exit_of(started.request_id).status, *texts

    def run_on_terminal(self, *argv: bytes, **options: object) -> tuple[int, bytes]:
        """Run a process on a new pty to its end; return wait status and what the terminal showed."""
        master, slave = os.openpty()
        try:
            started = self.ask(*argv, slave=os.ttyname(slave).encode(), **options)  # type: ignore[arg-type]
        finally:
            os.close(slave)
        shown = read_to_end(master)
        assert isinstance(started, Started), started
        return self.exit_of(started.request_id).status, shown

    def refusal(self, *argv: bytes, **options: object) -> Failed:
        """Ask for a process on pipes that cannot be started; return the refusal."""
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            failed = self.ask(*argv, descriptors=[null, null], **options)  # type: ignore[arg-type]
        finally:
            os.close(null)
        assert isinstance(failed, Failed), failed
        return failed

    def terminal_refusal(self, *argv: bytes, **options: object) -> Failed:
        """Ask for a process on a pty that cannot be started; return the refusal."""
        failed = self.ask(*argv, slave=b"/dev/null", **options)  # type: ignore[arg-type]
        assert isinstance(failed, Failed), failed
        return failed

    def start_quietly(self, *argv: bytes) -> Started:
        """Start a process on the null device."""
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            started = self.ask(*argv, descriptors=[null, null])
        finally:
            os.close(null)
        assert isinstance(started, Started), started
        return started

    def signal(self, child_id: int, signum: int) -> Signalled:
        """Have a child's group signalled and return the answer."""
        self._next_id += 1
        self.send(SignalRequest(self._next_id, child_id, signum))
        answer = self.answer(self._next_id)
        assert isinstance(answer, Signalled)
        return answer


def read_to_end(descriptor: int) -> bytes:
    """Read a pipe or terminal to its end and close it."""
    data = b""
    try:
        while piece := os.read(descriptor, 65536):
            data += piece
    except OSError:
        pass  # how a terminal ends
    finally:
        os.close(descriptor)
    return data
