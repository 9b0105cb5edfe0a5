"""What /proc tells of the processes a test has to do with: state, kin, memory, descriptors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from execserver.zygote.confine import filter_template, spare
from tests.support.waiting import wait_until

GONE = ""
ZOMBIE = "Z"


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def state(pid: int) -> str:
    """Return the state letter of a process; `GONE` when there is none."""
    fields = stat_fields(pid)
    return fields[0] if fields else GONE


def is_over(pid: int) -> bool:
    """Tell whether a process has ended; a zombie has."""
    return state(pid) in (GONE, ZOMBIE)


def wait_over(pid: int, timeout: float = 20.0) -> None:
    """Wait until a process has ended."""
    wait_until(lambda: is_over(pid), timeout)


def every_pid() -> list[int]:
    """Return the ids of all processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children_of(parent: int) -> list[int]:
    """Return the direct children of a process, zombies included."""
    return [pid for pid in every_pid() if (fields := stat_fields(pid)) and int(fields[1]) == parent]


def descendants_of(root: int) -> list[int]:
    """Return everything below a process, zombies included."""
    parents = {pid: int(fields[1]) for pid in every_pid() if (fields := stat_fields(pid))}
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def marked(mark: str) -> list[int]:
    """Return the live processes whose environment holds a text, wherever they were moved to."""
    wanted = mark.encode()
    found = []
    for pid in every_pid():
        try:
            holds = wanted in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue  # it has ended meanwhile, or is a zombie, or not ours to look at
        if holds and not is_over(pid):
            found.append(pid)
    return found


def zygotes_of(server_pid: int) -> list[int]:
    """Return the starter processes of a server: the children that run its own program."""
    return [pid for pid in children_of(server_pid) if b"--execserver-zygote" in command_line(pid)]


def is_filter_template(pid: int) -> bool:
    """Tell whether a process is the child that a zygote keeps to fork sandboxes under the filter."""
    try:
        name = Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n")
        return name == filter_template.NAME and not _has_pid_namespace(pid)
    except OSError:
        return False  # it has ended


def is_kept_ready(pid: int) -> bool:
    """Tell whether a process is what a zygote keeps for later starts: a filter template or a spare init."""
    try:
        name = Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n")
        is_of_these = name in (filter_template.NAME, spare.NAME)
        return is_of_these and os.getsid(pid) != pid  # an init leads a session from its first calls on
    except OSError:
        return False  # it has ended


def _has_pid_namespace(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((len(line.split()) > 2 for line in lines if line.startswith("NSpid:")), False)


def command_line(pid: int) -> bytes:
    """Return the arguments of a process, each ended by a NUL; nothing when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def may_look_into(pid: int) -> bool:
    """Tell whether the tests may see a process' descriptors, environment and files.

    The server and its zygotes let nobody who is not root, see `Libc.set_undumpable`.
    """
    return os.access(f"/proc/{pid}/fd", os.R_OK | os.X_OK)


def require_a_look_into(pid: int) -> None:
    """Skip where a process lets the user of the tests see nothing of it."""
    if not may_look_into(pid):
        pytest.skip("only root can look into a process that lets nobody")


def descriptor_count(pid: int) -> int:
    """Return how many descriptors a process has open."""
    if may_look_into(pid):
        return len(os.listdir(f"/proc/{pid}/fd"))
    # Linux 6.2 and newer tell the number to everybody.
    count = os.stat(f"/proc/{pid}/fd").st_size
    if not count:
        pytest.skip("only root can count descriptors of a process that lets nobody, before Linux 6.2")
    return count


def descriptors(pid: int) -> dict[int, str]:
    """Return the open descriptors of a process and what they are open on."""
    require_a_look_into(pid)
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue  # closed meanwhile
    return found


def thread_count(pid: int) -> int:
    """Return how many threads a process has."""
    return len(os.listdir(f"/proc/{pid}/task"))


def resident_bytes(pid: int) -> int:
    """Return the memory a process has resident."""
    return _memory(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """Return the most memory a process had resident since `reset_peak`."""
    return _memory(pid, "VmHWM")


def reset_peak(pid: int) -> None:
    """Begin to measure `peak_bytes` anew."""
    require_a_look_into(pid)
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _memory(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise AssertionError(f"process {pid} has no {field}")
