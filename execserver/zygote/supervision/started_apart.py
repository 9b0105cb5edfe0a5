"""Starting a program outside by a thread or a fork of the supervisor, which sets what no spawn can set.

Linux keeps scheduling for each thread, and a child has that of the thread which starts it.  The supervisor
itself could not take its own back, and a child that is told afterwards has begun to run.  What belongs to the
whole process takes a fork, which costs some milliseconds.  It runs nothing of the sandbox's, and every
descriptor that it leaves open is closed by the exec.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import _thread
import errno
import fcntl
import os
import sys

from execserver.zygote.confine.child import EVERY_SIGNAL, open_null

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_UNCATCHABLE = (9, 19)
_ERRNO_BYTES = 4


def start_in_thread(prepare: Callable[[], None], spawn: Callable[[], int]) -> int:
    """Return what `spawn` does in a thread that `prepare` has prepared.

    Raises what they raise, and OSError EAGAIN without a thread.
    """
    outcome: list[int | BaseException] = []
    ended = _thread.allocate_lock()

    def run() -> None:
        try:
            prepare()
            outcome.append(spawn())
        except BaseException as error:
            outcome.append(error)
        finally:
            ended.release()

    ended.acquire()
    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
    ended.acquire()
    (found,) = outcome
    if isinstance(found, BaseException):
        raise found
    return found


def start_in_fork(
    prepare: Callable[[], None], execute: Callable[[], None], descriptors: dict[int, int], ignored: int
) -> int:
    """Start a program in a fork; return its pid once it is executed.

    There, `prepare` sets what it inherits, and `execute` executes it or raises OSError; `descriptors` are as
    in `Means`, none of them under a number that another one gets.  Raises OSError with the errno of either.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
        if not pid:
            _become(prepare, execute, descriptors, ignored, writer)
    finally:
        os.close(writer)
        report = _report(reader)
    if not report:
        return pid
    os.waitpid(pid, 0)
    number = int.from_bytes(report, sys.byteorder)
    raise OSError(number, os.strerror(number))


def _report(reader: int) -> bytes:
    try:
        return os.read(reader, _ERRNO_BYTES)
    finally:
        os.close(reader)


def _become(
    prepare: Callable[[], None],
    execute: Callable[[], None],
    descriptors: dict[int, int],
    ignored: int,
    writer: int,
) -> None:
    """Be the fork; never returns."""
    try:
        writer = fcntl.fcntl(writer, fcntl.F_DUPFD_CLOEXEC, max(descriptors, default=2) + 1)
        os.setsid()
        prepare()
        for number, descriptor in descriptors.items():
            os.dup2(descriptor, number)
        for number in (0, 1, 2):
            if number not in descriptors:
                open_null(number)
        for number in EVERY_SIGNAL:
            if number not in _UNCATCHABLE:
                _signal.signal(number, _signal.SIG_IGN if ignored >> number - 1 & 1 else _signal.SIG_DFL)
        execute()
    except OSError as error:
        os.write(writer, (error.errno or errno.EIO).to_bytes(_ERRNO_BYTES, sys.byteorder))
    finally:
        os._exit(errno.EIO)
