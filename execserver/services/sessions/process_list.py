"""The CPU time and memory of a running process, read from /proc, for `process/list`."""

from __future__ import annotations

import os

from msgspec import structs

from execserver.protocol.process import ProcessListEntry
from execserver.protocol.watching import SessionProcess
from execserver.services.running.process import Process
from execserver.services.sessions.host import Session

_TICK_MS = 1000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/PID/stat, counted behind the name: that is in brackets and may hold spaces and brackets.
_CPU_TICKS, _RSS_PAGES = slice(11, 15), 21  # utime, stime, and the same of reaped children


def list_entry(process_id: str, process: Process) -> ProcessListEntry:
    """Describe one process of a session; a process that has exited has no CPU time and no memory."""
    state = process.state
    ended, usage = process.ending or (None, None)
    cpu_time_ms, rss_bytes = (None, None) if state.exited else _usage(process.pid)
    return ProcessListEntry(
        process_id=process_id,
        argv=tuple(process.argv),
        pid=None if state.exited else process.pid,
        tty=state.tty,
        running=not state.exited,
        exit_code=state.exit_code,
        started_at_ms=int(process.started_at * 1000),
        cpu_time_ms=cpu_time_ms,
        rss_bytes=rss_bytes,
        ended=ended,
        usage=usage,
    )


def session_entry(session: Session, process_id: str, process: Process) -> SessionProcess:
    """Describe one process, for a list over several sessions."""
    plain = structs.asdict(list_entry(process_id, process))
    rows, cols = process.size or (None, None)
    return SessionProcess(
        session_id=session.session_id,
        session_name=session.name,
        process_name=process.name,
        rows=rows,
        cols=cols,
        watchers=len(process.followers),
        **plain,
    )


def _usage(pid: int) -> tuple[int | None, int | None]:
    """Return CPU milliseconds (with reaped children) and resident bytes of a process; None if unknown."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None, None
    try:
        fields = os.read(fd, 4096).rpartition(b")")[2].split()
    except OSError:
        return None, None
    finally:
        os.close(fd)
    ticks = sum(map(int, fields[_CPU_TICKS]))
    return ticks * _TICK_MS, int(fields[_RSS_PAGES]) * _PAGE_BYTES
