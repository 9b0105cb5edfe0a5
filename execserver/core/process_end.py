"""Why a process ended, by proof only.  A status of 137 proves nothing: everybody can exit with it.

In this order: what this server sent; what the kernel counted in the control group; a signal that the kernel
sends for a limit which was set, if the limit can have been reached; else a signal of somebody else's.
"""

from __future__ import annotations

import signal
from typing import Final, NamedTuple

from msgspec import structs

from execserver.core.resource_limits import (
    CPU_TIME,
    FILE_BYTES,
    MEMORY,
    NO_LIMITS,
    PROCESSES,
    WALL,
    Limits,
    shown,
    shown_bytes,
)
from execserver.protocol.resource_limits import EndCause, ProcessEnd

_SIGKILL, _SIGXCPU, _SIGXFSZ = signal.SIGKILL, signal.SIGXCPU, signal.SIGXFSZ
# The kernel counts CPU time for the rlimit by its ticks, which on a busy machine may well run ahead of the
# time that it reports afterwards.
_TICKS_AHEAD: Final = 2
PROCESS, SESSION, SERVICE = "process", "session", "service"

_WORDS: Final = {
    MEMORY: "memory limit",
    PROCESSES: "limit of processes",
    CPU_TIME: "CPU time limit",
    FILE_BYTES: "limit of a file's size",
}


class MemoryEvents(NamedTuple):
    """What the kernel counted while a process lived: limits reached, and processes killed for it."""

    killed: int = 0  # in the group of the process
    own: int = 0
    session: int = 0
    service: int = 0


class Measured(NamedTuple):
    """What was measured when a limit was enforced by looking."""

    limit: str
    value: int
    processes: int


class Evidence(NamedTuple):
    """All that is known about the end of a process; `signal` is 0 for one that exited by itself."""

    signal: int
    is_known: bool = True  # False: whoever reaped it died, and its status with it
    limits: Limits = NO_LIMITS
    session_limits: Limits = NO_LIMITS
    watched: Measured | None = None  # why this server killed it, if a limit was the reason
    terminated: bool = False
    sent: frozenset[int] = frozenset()  # signals that clients had sent
    memory: MemoryEvents = MemoryEvents()
    cpu_ms: int = 0
    peak_bytes: int | None = None


def why(evidence: Evidence) -> ProcessEnd | None:
    """Return why a process ended; None if it exited by itself."""
    if not evidence.is_known:
        text = "ended in a way that nobody knows: the process that started it was killed"
        return ProcessEnd(cause=EndCause.UNKNOWN, text=text)
    if not evidence.signal:
        return None
    found = _sent(evidence) or _out_of_memory(evidence) or _by_rlimit(evidence) or _signalled(evidence)
    return structs.replace(found, signal=evidence.signal)


def _sent(evidence: Evidence) -> ProcessEnd | None:
    if evidence.signal == _SIGKILL:
        if evidence.watched is not None:
            return _watched(evidence.watched, evidence.limits)
        if evidence.terminated:
            return ProcessEnd(cause=EndCause.SIGNAL, text="ended by this server, as it was asked to")
    if evidence.signal in evidence.sent:
        return ProcessEnd(
            cause=EndCause.SIGNAL, text=f"ended by signal {_named(evidence.signal)} of a client"
        )
    return None


def _watched(measured: Measured, limits: Limits) -> ProcessEnd:
    name, value = measured.limit, limits.get(measured.limit)
    if name == WALL:
        text = f"ended because its time of {shown(name, value)} was over"
        return ProcessEnd(cause=EndCause.DEADLINE, limit=name, scope=PROCESS, value=value, text=text)
    found = shown(name, measured.value)
    if name == CPU_TIME:
        return _limit(name, value, PROCESS, f"used {found}")
    if name == MEMORY:
        found += f", {_processes(measured.processes)}"
    return _limit(name, value, PROCESS, f"sampled: {found}")


def _out_of_memory(evidence: Evidence) -> ProcessEnd | None:
    memory = evidence.memory
    if evidence.signal != _SIGKILL or not memory.killed:
        return None
    peak = "" if evidence.peak_bytes is None else f"peak {shown_bytes(evidence.peak_bytes)}, "
    seen = f"{peak}{_processes(memory.killed)}"
    if memory.own:
        return _limit(MEMORY, evidence.limits.get(MEMORY), PROCESS, seen)
    if memory.session:
        return _limit(MEMORY, evidence.session_limits.get(MEMORY), SESSION, seen)
    if memory.service:
        text = f"ended because the memory limit of the server's own control group was reached ({seen})"
        return ProcessEnd(cause=EndCause.LIMIT, limit=MEMORY, scope=SERVICE, text=text)
    text = f"ended because the machine was out of memory ({seen})"
    return ProcessEnd(cause=EndCause.MACHINE_MEMORY, text=text)


def _by_rlimit(evidence: Evidence) -> ProcessEnd | None:
    """A command can send itself the same signals; the CPU time shows whether it did."""
    limits, number = evidence.limits, evidence.signal
    cpu_limit = limits.get(CPU_TIME)
    if cpu_limit and number in (_SIGXCPU, _SIGKILL) and evidence.cpu_ms * _TICKS_AHEAD >= cpu_limit:
        return _limit(CPU_TIME, cpu_limit, PROCESS, f"used {shown(CPU_TIME, evidence.cpu_ms)}")
    if limits.get(FILE_BYTES) and number == _SIGXFSZ:
        return _limit(FILE_BYTES, limits.get(FILE_BYTES), PROCESS, "")
    return None


def _signalled(evidence: Evidence) -> ProcessEnd:
    text = f"ended by signal {_named(evidence.signal)}, which this server did not send"
    return ProcessEnd(cause=EndCause.SIGNAL, text=text)


def _limit(name: str, value: int, scope: str, seen: str) -> ProcessEnd:
    whose = "its" if scope == PROCESS else f"the {scope}'s"
    found = f" ({seen})" if seen else ""
    text = f"ended because {whose} {_WORDS[name]} of {shown(name, value)} was reached{found}"
    return ProcessEnd(cause=EndCause.LIMIT, limit=name, scope=scope, value=value, text=text)


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _named(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
