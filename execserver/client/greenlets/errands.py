"""What is asked of the server for a caller who may be interrupted, or does not wait: it goes on without him.

A request that can leave at once does.  Everything else runs in a greenlet of its own, which ends with its
answer or with the session.  A caller who waits counts as waiting for the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar, cast

import gevent
from gevent.event import AsyncResult

from execserver.client.errors import ExecServerError, RequestFailed, TransportClosed, kept
from execserver.client.greenlets.connection import Waiter
from execserver.client.greenlets.session import Session
from execserver.client.operations.call import Call, Operation, drive
from execserver.client.rules import wire
from execserver.client.rules.calls import Outcome

T = TypeVar("T")
_Asked: TypeAlias = "AsyncResult[Outcome] | gevent.Greenlet[..., Outcome]"


def opened(session: Session, opening: Operation[T], close: Operation[None]) -> T:
    """Return what `opening`, of one request, returns; what does not come to the caller is closed again.

    An opening whose caller is interrupted goes on until its answer has come: older servers forget to close
    what is not open yet.  `close` is not needed after a refusal, and is not waited for.  Raises as `opening`.
    """
    wanted = next(opening)
    answer: AsyncResult[Outcome] = AsyncResult()
    is_sent = _sent_at_once(session, wanted, answer)
    asked: _Asked = answer if is_sent else gevent.spawn(_outcome, session, wanted)
    try:
        with session.waiting():
            outcome = cast(Outcome, asked.get())
    except BaseException:
        gevent.spawn(_close_behind, session, asked, close)
        raise
    found = _result(opening, wanted, outcome)
    if not isinstance(found, ExecServerError):
        return found
    if not isinstance(found, RequestFailed):
        gevent.spawn(drive, session, close)  # whether the server has opened it is unknown
    raise kept(found)


def opened_at_once(
    session: Session,
    opening: Operation[T],
    close: Operation[None],
    take: Callable[[T | ExecServerError], object],
) -> bool:
    """Do as `opened`, but wait for nothing; return False, with nothing done, where that cannot be.

    `take` gets the result, or the error in its place, in the event loop, where nothing may block.
    """
    asked = _Opening(session, opening, close, take)
    return _sent_at_once(session, asked.wanted, asked)


def finish(session: Session, operation: Operation[None]) -> None:
    """Carry out an operation that raises nothing, and wait for its end."""
    task = gevent.spawn(drive, session, operation)
    with session.waiting():
        task.join()


def told_at_once(session: Session, operation: Callable[[], Operation[None]]) -> bool:
    """Carry out an operation of one request, which may be repeated and raises nothing; wait for nothing.

    Returns False, with nothing done, where the request cannot leave at once.
    """
    return _sent_at_once(session, next(operation()), _Told(session, operation))


def _sent_at_once(session: Session, wanted: Call, waiter: Waiter) -> bool:
    """Send a request whose answer `waiter` takes, if that needs no waiting, and the answer no limit."""
    if session.request_timeout is not None or wanted.timeout is not None:
        return False
    connection = session.at_hand
    return connection is not None and connection.send_at_once(wanted.method.name, wanted.params, waiter)


def _outcome(session: Session, wanted: Call) -> Outcome:
    try:
        return session.request(wanted.method.name, wanted.params, wanted.resend, wanted.timeout)
    except ExecServerError as error:
        return kept(error)


def _result(opening: Operation[T], wanted: Call, outcome: Outcome) -> T | ExecServerError:
    """Return what an opening returns for its answer, or the error in its place."""
    if isinstance(outcome, ExecServerError):
        return kept(outcome)
    try:
        opening.send(wire.decode(wanted.method.result, outcome, wanted.method.name))
    except StopIteration as end:
        result: T = end.value
        return result
    except ExecServerError as error:
        return kept(error)
    raise AssertionError("an opening is of one request")


def _close_behind(session: Session, asked: _Asked, close: Operation[None]) -> None:
    gevent.wait([asked])
    if not isinstance(asked.value, RequestFailed):
        drive(session, close)


class _Opening(Generic[T]):
    """Waits for the answer to an opening, for somebody who does not."""

    __slots__ = ("_close", "_opening", "_session", "_take", "wanted")

    def __init__(
        self,
        session: Session,
        opening: Operation[T],
        close: Operation[None],
        take: Callable[[T | ExecServerError], object],
    ) -> None:
        self.wanted = next(opening)
        self._session = session
        self._opening = opening
        self._close = close
        self._take = take

    def set(self, value: Outcome) -> None:
        """See `Waiter`."""
        found = _result(self._opening, self.wanted, value)
        if isinstance(found, ExecServerError) and not isinstance(found, RequestFailed):
            gevent.spawn(drive, self._session, self._close)  # as in `opened`
        self._take(found)


class _Told:
    """Waits for the answer to a request that nobody waits for; asks again if the connection was lost."""

    __slots__ = ("_operation", "_session")

    def __init__(self, session: Session, operation: Callable[[], Operation[None]]) -> None:
        self._session = session
        self._operation = operation

    def set(self, value: Outcome) -> None:
        """See `Waiter`."""
        if isinstance(value, TransportClosed):
            gevent.spawn(drive, self._session, self._operation())
