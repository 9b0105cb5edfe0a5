"""The commands of a person on a box, as a table or as JSON.  Names and words from the box are escaped."""

from __future__ import annotations

import json
import shlex
import time
from typing import TYPE_CHECKING, Final

from msgspec import to_builtins

from execserver.box.commands.kept import processes, short_name
from execserver.box.commands.running import open_client
from execserver.box.commands.signalled import status_of
from execserver.box.connecting import Box
from execserver.box.shown import shown

if TYPE_CHECKING:
    from execserver.protocol.watching import SessionProcess

_HEAD: Final = ("NAME", "ID", "STATUS", "AGE", "CPU", "MEMORY", "COMMAND")
_COMMAND_WIDTH: Final = 80
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def listed(box: Box, *, as_json: bool) -> str:
    """Return the text about all commands of a box.  Raises Leave."""
    client = open_client(box)
    try:
        found = processes(client, box)
    finally:
        client.close()
    if as_json:
        return json.dumps([_members(process) for process in found], indent=1) + "\n"
    return table(found, time.time())


def table(found: list[SessionProcess], now: float) -> str:
    """Return aligned columns."""
    rows = [_HEAD, *(_row(process, now) for process in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _row(process: SessionProcess, now: float) -> tuple[str, ...]:
    cpu_ms, memory_bytes = process.cpu_time_ms, process.rss_bytes
    if process.usage is not None:
        cpu_ms, memory_bytes = process.usage.cpu_ms, process.usage.peak_bytes
    cpu = "-" if cpu_ms is None else f"{cpu_ms / 1000:.1f}s"
    memory = "-" if memory_bytes is None else f"{memory_bytes / 2**20:.0f} MiB"
    return (
        short_name(process),
        shown(process.process_id[:8], 8),
        _status(process),
        _span(now - process.started_at_ms / 1000),
        cpu,
        memory,
        shown(shlex.join(process.argv), _COMMAND_WIDTH),
    )


def _status(process: SessionProcess) -> str:
    if process.running:
        return "running"
    end = process.ended
    why = "" if end is None else end.limit or ("" if end.cause.value == "signal" else end.cause.value)
    status = status_of(process)
    code = "?" if status is None else status
    return f"ended {code} ({shown(why, 20)})" if why else f"ended {code}"


def _span(seconds: float) -> str:
    whole = max(0, int(seconds))
    return next((f"{whole // size}{unit}" for size, unit in _UNITS if whole >= size), "0s")


def _members(process: SessionProcess) -> dict[str, object]:
    return {
        "name": process.process_name,
        "process_id": process.process_id,
        "session_id": process.session_id,
        "argv": list(process.argv),
        "tty": process.tty,
        "running": process.running,
        "exit_code": process.exit_code,
        "started_at_ms": process.started_at_ms,
        "cpu_time_ms": process.cpu_time_ms,
        "rss_bytes": process.rss_bytes,
        "ended": None if process.ended is None else to_builtins(process.ended),
        "usage": None if process.usage is None else to_builtins(process.usage),
        "watchers": process.watchers,
    }
