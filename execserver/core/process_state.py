"""The life of one process as its client sees it (wire contract, sections 8 and 9).

starting -> running -> exited -> closed.  `exited` means that the leader was reaped; `closed` means exited
and every output at its end.  The two are independent: a grandchild may hold an output open long after the
exit, so late output has a higher number than the exit, and `closed` always has the highest one.  Nothing is
recorded after `closed`.
"""

from __future__ import annotations

import enum
from collections import OrderedDict

from execserver.core.denial import looks_denied
from execserver.core.output_log import OutputLog, Page

REMEMBERED_WRITE_IDS = 4096  # per process; the reference remembers as many
SIGNALLED_TTY_EXIT_CODE = 1  # a terminal's process reports every death by signal as this


class ProcessPhase(enum.Enum):
    """How far a process has come."""

    STARTING = enum.auto()
    RUNNING = enum.auto()
    EXITED = enum.auto()
    CLOSED = enum.auto()


class WriteMemory:
    """The newest `REMEMBERED_WRITE_IDS` accepted write ids, so that a repeat is not written."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, write_id: str | None) -> bool:
        return write_id in self._seen

    def add(self, write_id: str) -> None:
        """Remember an id; at the bound the oldest is forgotten."""
        self._seen[write_id] = None
        if len(self._seen) > REMEMBERED_WRITE_IDS:
            self._seen.popitem(last=False)


class SandboxNote:
    """What a state remembers of a process's sandbox.

    `own_init`: the process ran under an init that reports a death by signal as a status.  `refusal` is why
    nothing ran in its place, where that is known for certain; empty otherwise.
    """

    __slots__ = ("own_init", "refusal")

    def __init__(self, own_init: bool = False, refusal: str = "") -> None:
        self.own_init = own_init
        self.refusal = refusal


class ProcessState:
    """Phase, exit code, numbered output and write memory of one process.

    `sandbox` is None for a process that was started without a sandbox; only others are ever denied anything.
    """

    __slots__ = ("exit_code", "log", "phase", "sandbox", "sandbox_denied", "terminated", "tty", "writes")

    def __init__(self, *, tty: bool, retained_bytes: int, sandbox: SandboxNote | None = None) -> None:
        self.tty = tty
        self.sandbox = sandbox
        self.sandbox_denied = False
        self.phase = ProcessPhase.STARTING
        self.exit_code: int | None = None
        self.terminated = False
        self.log = OutputLog(retained_bytes)
        self.writes = WriteMemory()

    @property
    def exited(self) -> bool:
        """True from the exit on."""
        return self.exit_code is not None

    @property
    def closed(self) -> bool:
        """True once nothing can follow."""
        return self.phase is ProcessPhase.CLOSED

    def started(self) -> None:
        """Note that the program runs."""
        self._step(ProcessPhase.STARTING, ProcessPhase.RUNNING)

    def record_output(self, stream: str, data: bytes) -> int:
        """Number and retain one chunk."""
        if self.phase is ProcessPhase.CLOSED:
            raise ValueError("output after closed")
        return self.log.append(stream, data)

    def record_exit(self, exit_code: int, *, signalled: bool) -> int:
        """Note the exit and return its number; `exit_code` is 128+N for a death by signal N."""
        self._step(ProcessPhase.RUNNING, ProcessPhase.EXITED)
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
        return self.log.take_seq()

    def record_closed(self) -> int:
        """Note the end of everything and return its number."""
        self._step(ProcessPhase.EXITED, ProcessPhase.CLOSED)
        return self.log.take_seq()

    @property
    def sandbox_refusal(self) -> str:
        """Why nothing ran, where that is known for certain; else empty."""
        return self.sandbox.refusal if self.sandbox is not None and self.exited else ""

    def answers_read(self, after_seq: int) -> bool:
        """Tell whether a waiting `process/read` has something to say (section 8.2).

        An exit that the reader has seen (`after_seq` at the newest number) is nothing new.
        """
        if self.closed or self.log.has_after(after_seq):
            return True
        return self.exited and after_seq < self.log.next_seq - 1

    def page(self, after_seq: int, max_bytes: int | None) -> Page:
        """Return the retained chunks that one `process/read` gets."""
        return self.log.page(after_seq, max_bytes)

    def _step(self, before: ProcessPhase, after: ProcessPhase) -> None:
        if self.phase is not before:
            raise ValueError(f"{self.phase.name.lower()} cannot become {after.name.lower()}")
        self.phase = after
