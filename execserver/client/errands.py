"""What is asked of the server for a caller who may be interrupted: it goes on without him.

Each runs in a greenlet of its own, which ends with its answer or with the session.  The caller counts as
waiting for the server.
"""

from __future__ import annotations

from typing import TypeVar

import gevent

from execserver.client.errors import ExecServerError, RequestFailed, kept
from execserver.client.operations.call import Operation, drive
from execserver.client.session import Session

T = TypeVar("T")


def opened(session: Session, opening: Operation[T], close: Operation[None]) -> T:
    """Return what `opening` returns; if that does not come to the caller, what it opened is closed again.

    An opening whose caller is interrupted goes on until its answer has come: older servers forget to close
    what is not open yet.  `close` is not needed after a refusal, and is not waited for.  Raises as `opening`.
    """
    task = gevent.spawn(_outcome, session, opening)
    try:
        with session.waiting():
            found = task.get()
    except BaseException:
        gevent.spawn(_close_behind, session, task, close)
        raise
    if not isinstance(found, ExecServerError):
        return found
    if not isinstance(found, RequestFailed):
        gevent.spawn(drive, session, close)  # whether the server has opened it is unknown
    raise kept(found)


def finish(session: Session, operation: Operation[None]) -> None:
    """Carry out an operation that raises nothing, and wait for its end."""
    task = gevent.spawn(drive, session, operation)
    with session.waiting():
        task.join()


def _outcome(session: Session, operation: Operation[T]) -> T | ExecServerError:
    try:
        return drive(session, operation)
    except ExecServerError as error:
        return kept(error)


def _close_behind(
    session: Session, opening: gevent.Greenlet[..., T | ExecServerError], close: Operation[None]
) -> None:
    opening.join()
    if not isinstance(opening.value, RequestFailed):
        drive(session, close)
