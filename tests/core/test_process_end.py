"""Why a process ended: what proves it, and in which order."""

from __future__ import annotations

import signal

import pytest

from execserver.core.process_end import Evidence, Measured, MemoryEvents, why
from execserver.core.resource_limits import Limits
from execserver.protocol.resource_limits import EndCause

MIB = 1024 * 1024
KILL, TERM, XCPU, XFSZ = signal.SIGKILL, signal.SIGTERM, signal.SIGXCPU, signal.SIGXFSZ
LIMITS = Limits({"memoryBytes": 512 * MIB, "wallMs": 2000, "cpuMs": 1000, "fileBytes": 4096})


def told(evidence: Evidence) -> tuple[str, str | None, str | None, int | None, str]:
    end = why(evidence)
    assert end is not None
    assert end.signal == evidence.signal
    return end.cause.value, end.limit, end.scope, end.value, end.text


def test_who_exits_by_itself_has_no_cause_whatever_the_status_and_the_counters_say() -> None:
    assert why(Evidence(0, limits=LIMITS, memory=MemoryEvents(killed=3, own=1), terminated=True)) is None


def test_its_own_memory_limit() -> None:
    evidence = Evidence(KILL, limits=LIMITS, memory=MemoryEvents(6, own=1), peak_bytes=512 * MIB)
    assert told(evidence) == (
        *("limit", "memoryBytes", "process", 512 * MIB),
        "ended because its memory limit of 512 MiB was reached (peak 512 MiB, 6 processes)",
    )


def test_the_sessions_the_services_and_the_machines_memory() -> None:
    session = Limits({"memoryBytes": 1024 * MIB})
    found = [
        told(Evidence(KILL, limits=LIMITS, session_limits=session, memory=memory))
        for memory in (MemoryEvents(1, session=1, service=1), MemoryEvents(1, service=1), MemoryEvents(1))
    ]
    assert [each[:4] for each in found] == [
        ("limit", "memoryBytes", "session", 1024 * MIB),
        ("limit", "memoryBytes", "service", None),
        ("machineMemory", None, None, None),
    ]
    assert found[0][4] == "ended because the session's memory limit of 1 GiB was reached (1 process)"


def test_a_limit_that_others_reached_is_no_cause() -> None:
    # Nothing of this process was killed for want of memory.
    evidence = Evidence(KILL, limits=LIMITS, memory=MemoryEvents(killed=0, own=0, session=2))
    assert told(evidence)[0] == "signal"


def test_its_time_is_over_only_if_this_server_said_so() -> None:
    over = Evidence(KILL, limits=LIMITS, watched=Measured("wallMs", 2000, 0), memory=MemoryEvents(1, 1))
    assert told(over) == ("deadline", "wallMs", "process", 2000, "ended because its time of 2 s was over")
    assert why(over._replace(signal=0)) is None  # it was quicker


def test_what_was_sampled_says_so() -> None:
    evidence = Evidence(KILL, limits=LIMITS, watched=Measured("memoryBytes", 530 * MIB, 6))
    assert told(evidence)[4] == (
        "ended because its memory limit of 512 MiB was reached (sampled: 530 MiB, 6 processes)"
    )


def test_cpu_time_is_believed_only_if_it_was_used() -> None:
    assert told(Evidence(XCPU, limits=LIMITS, cpu_ms=1003))[:4] == ("limit", "cpuMs", "process", 1000)
    assert told(Evidence(KILL, limits=LIMITS, cpu_ms=2000))[:2] == ("limit", "cpuMs")
    assert told(Evidence(XCPU, limits=LIMITS, cpu_ms=10))[0] == "signal"  # it sent that to itself
    assert told(Evidence(XCPU, cpu_ms=1003))[0] == "signal"


def test_a_file_that_is_too_large() -> None:
    assert told(Evidence(XFSZ, limits=LIMITS))[:4] == ("limit", "fileBytes", "process", 4096)
    assert told(Evidence(XFSZ))[0] == "signal"


def test_whose_signal_it_was() -> None:
    mine = told(Evidence(KILL, terminated=True))
    clients = told(Evidence(TERM, sent=frozenset({TERM})))
    others = told(Evidence(KILL, sent=frozenset({TERM})))
    assert [each[0] for each in (mine, clients, others)] == ["signal"] * 3
    assert mine[4] == "ended by this server, as it was asked to"
    assert clients[4] == "ended by signal 15 (SIGTERM) of a client"
    assert others[4] == "ended by signal 9 (SIGKILL), which this server did not send"
    assert told(Evidence(40))[4] == "ended by signal 40, which this server did not send"


@pytest.mark.parametrize("number", [0, KILL])
def test_a_lost_status_proves_nothing(number: int) -> None:
    end = why(Evidence(number, is_known=False, memory=MemoryEvents(1, 1)))
    assert end is not None
    assert end.cause is EndCause.UNKNOWN
