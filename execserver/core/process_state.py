"""The state of one process as its client sees it (wire contract, sections 8 and 9).

starting -> running -> exited -> closed.  `exited` means that the session leader was reaped; `closed` means
that also every output has ended.  A grandchild may hold an output open long after the exit, so late output
has a higher number than the exit.  `closed` always has the highest one, and nothing is recorded after it.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from execserver.core.denial import looks_denied
from execserver.core.output_log import Beside, OutputLog, Page

if TYPE_CHECKING:
    from execserver.handover.records import PackedState

REMEMBERED_WRITE_IDS = 4096  # per process, as at the reference server
SIGNALLED_TTY_EXIT_CODE = 1  # for every death by signal on a terminal, as at the reference server


class ProcessPhase(enum.Enum):
    """The state of a process."""

    STARTING = enum.auto()
    RUNNING = enum.auto()
    EXITED = enum.auto()
    CLOSED = enum.auto()


_CLOSED: Final = ProcessPhase.CLOSED  # each chunk of output asks, and looking a member up costs more


class WriteMemory(OrderedDict[str, None]):
    """The newest `REMEMBERED_WRITE_IDS` accepted write ids, so that a repeated write is not written again.

    Oldest first.
    """

    __slots__ = ()

    def add(self, write_id: str | None) -> None:
        """Remember an id, if there is one; at the limit forget the oldest."""
        if write_id is None:
            return
        self[write_id] = None
        if len(self) > REMEMBERED_WRITE_IDS:
            self.popitem(last=False)


class SandboxNote:
    """What the state keeps about the sandbox of a process.

    `own_init`: the process ran under a sandbox init that reports a death by signal as an exit status.
    `refusal` says why the program did not run at all, if that is certain; else it is empty.
    """

    __slots__ = ("own_init", "refusal")

    def __init__(self, own_init: bool = False, refusal: str = "") -> None:
        self.own_init = own_init
        self.refusal = refusal


class ProcessState:
    """Phase, exit code, numbered output and write memory of one process.

    `sandbox` is None for a process that was started without a sandbox context; such a process is never
    reported as denied.
    """

    __slots__ = (
        *("end_text", "exit_code", "exit_seq", "log", "phase", "sandbox", "sandbox_denied"),
        *("terminated", "tty"),
        "writes",
    )

    def __init__(self, *, tty: bool, retained_bytes: int, sandbox: SandboxNote | None = None) -> None:
        self.tty = tty
        self.sandbox = sandbox
        self.sandbox_denied = False
        self.phase = ProcessPhase.STARTING
        self.exit_code: int | None = None
        self.exit_seq = 0
        self.terminated = False
        self.end_text = b""  # why it ended and what it used, as members of a message; empty if nobody asked
        self.log = OutputLog(retained_bytes)
        self.writes = WriteMemory()

    @property
    def exited(self) -> bool:
        """True from the exit on."""
        return self.exit_code is not None

    @property
    def closed(self) -> bool:
        """True once nothing can follow."""
        return self.phase is _CLOSED

    def started(self) -> None:
        """Record that the program runs."""
        self._step(ProcessPhase.STARTING, ProcessPhase.RUNNING)

    def record_output(self, stream: str, data: bytes, at_ms: int = 0) -> int:
        """Number and retain one chunk; return its number.  Raises ValueError after `closed`."""
        if self.phase is _CLOSED:
            raise ValueError("output after closed")
        return self.log.append(stream, data, at_ms)

    def record_exit(self, exit_code: int, *, signalled: bool) -> int:
        """Record the exit and return its number; `exit_code` is 128+N for a death by signal N."""
        self._step(ProcessPhase.RUNNING, ProcessPhase.EXITED)
        # A sandbox init reports the death of its command as a status, so the rule of terminals does not
        # apply; a termination kills the init itself, by a signal.
        as_status = self.sandbox is not None and self.sandbox.own_init and not self.terminated
        self.exit_code = SIGNALLED_TTY_EXIT_CODE if signalled and self.tty and not as_status else exit_code
        if self.sandbox is not None and exit_code:
            log = self.log
            outputs = (
                log.text_of("stdout", "pty"),
                log.text_of("stderr"),
                log.text_of("stdout", "pty", "stderr"),
            )
            self.sandbox_denied = looks_denied(self.exit_code, *outputs)
        self.exit_seq = self.log.take_seq()
        return self.exit_seq

    def record_closed(self) -> int:
        """Record that the process is closed and return the number of that event."""
        self._step(ProcessPhase.EXITED, ProcessPhase.CLOSED)
        return self.log.take_seq()

    @property
    def sandbox_refusal(self) -> str:
        """Why the program did not run, if that is certain and the process has exited; else empty."""
        return self.sandbox.refusal if self.sandbox is not None and self.exited else ""

    def answers_read(self, after_seq: int) -> bool:
        """Return whether a waiting `process/read` has something new to answer (section 8.2).

        An exit that the reader has seen already (`after_seq` at the newest number) is nothing new.
        """
        if self.closed or self.log.has_after(after_seq):
            return True
        return self.exited and after_seq < self.log.next_seq - 1

    def page(self, after_seq: int, max_bytes: int | None) -> Page:
        """Return the retained chunks that one `process/read` gets."""
        return self.log.page(after_seq, max_bytes)

    def pack(self, beside: Beside) -> PackedState:
        """Return what `unpacked` makes an equal state of; the output goes `beside` it."""
        from execserver.handover.records import PackedState

        return PackedState(
            tty=self.tty,
            phase=self.phase.name,
            exit_code=self.exit_code,
            exit_seq=self.exit_seq,
            terminated=self.terminated,
            sandbox=None if self.sandbox is None else (self.sandbox.own_init, self.sandbox.refusal),
            sandbox_denied=self.sandbox_denied,
            end_text=self.end_text,
            write_ids=list(self.writes),
            log=self.log.pack(beside),
        )

    @classmethod
    def unpacked(cls, packed: PackedState, retained_bytes: int, beside: memoryview) -> ProcessState:
        """Return the state that was packed; `beside` is what went along beside the records."""
        note = None if packed.sandbox is None else SandboxNote(*packed.sandbox)
        state = cls(tty=packed.tty, retained_bytes=retained_bytes, sandbox=note)
        state.phase = ProcessPhase[packed.phase]
        state.exit_code, state.exit_seq = packed.exit_code, packed.exit_seq
        state.terminated, state.sandbox_denied = packed.terminated, packed.sandbox_denied
        state.end_text = packed.end_text
        for write_id in packed.write_ids:
            state.writes.add(write_id)
        state.log.restore(packed.log, beside)
        return state

    def _step(self, before: ProcessPhase, after: ProcessPhase) -> None:
        if self.phase is not before:
            raise ValueError(f"{self.phase.name.lower()} cannot become {after.name.lower()}")
        self.phase = after
