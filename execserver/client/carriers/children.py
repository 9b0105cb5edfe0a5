"""Starting a server as a child, and ending it: plain system calls, without waiting and without a loop."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Final

from execserver.client.errors import StartFailed

_DEFAULT_SIGNALS: Final = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them; a child should not


def spawn(argv: Sequence[str], env: Mapping[str, str]) -> tuple[int, int, int]:
    """Start a child in a process group of its own, with two pipes.  Raises `StartFailed`.

    Returns its pid, the writing end of its stdin and the reading end of its stdout, which the caller owns.
    """
    child_input, to_child = os.pipe()
    from_child, child_output = os.pipe()
    try:
        pid = os.posix_spawnp(
            argv[0],
            list(argv),
            dict(env),
            file_actions=[(os.POSIX_SPAWN_DUP2, child_input, 0), (os.POSIX_SPAWN_DUP2, child_output, 1)],
            setpgroup=0,
            setsigdef=_DEFAULT_SIGNALS,
        )
    except (OSError, IndexError, ValueError) as error:
        os.close(to_child)
        os.close(from_child)
        raise StartFailed(f"cannot start {argv[0] if argv else 'an empty command'}: {error}") from error
    finally:
        os.close(child_input)
        os.close(child_output)
    return pid, to_child, from_child


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signal a child and all of its process group."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass  # all of the group has ended


def watch_end(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a child has ended, None if it was reaped already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None  # another waiter of this program was faster


def failed_start(program: str, pid: int) -> StartFailed:
    """Return the error for a child that is silent for good; it is not reaped."""
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        ended = None  # another waiter of this program was faster
    if ended is None:
        what = "closed its output"
    elif ended.si_code == os.CLD_EXITED:
        what = f"ended with status {ended.si_status}"
    else:
        what = f"was killed by {_signal_name(ended.si_status)}"
    return StartFailed(f"{program} {what} before it answered")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # one of the real-time signals, most of which have no name


def reap(pid: int) -> None:
    """Reap a child, which should have ended: this waits for it."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass
