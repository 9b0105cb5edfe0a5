"""Who holds a session and when it ends; time is a number here."""

from __future__ import annotations

from itertools import count

import pytest

from execserver.core.sessions import Attachment, SessionTable
from execserver.protocol.errors import InvalidRequest, SessionAlreadyAttached


def table(*, ttl_s: float = 30.0, max_detached: int = 100) -> SessionTable:
    numbers = count(1)
    return SessionTable(ttl_s, max_detached, lambda: f"s{next(numbers)}")


def test_an_attached_session_cannot_be_taken() -> None:
    sessions = table()
    record = sessions.create()
    with pytest.raises(SessionAlreadyAttached, match="session s1 is already attached to another connection"):
        sessions.resume(record.session_id)


def test_an_unknown_session_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"^unknown session id nope$"):
        table().resume("nope")


def test_a_detached_session_can_be_resumed_until_its_time_is_over() -> None:
    sessions = table()
    record = sessions.create()
    sessions.detach(record, now=100.0)
    assert sessions.expire(129.9) == []
    assert sessions.resume("s1") is record
    assert record.attachment is Attachment.ATTACHED
    assert sessions.expire(1000.0) == []


def test_each_detach_starts_the_time_anew() -> None:
    sessions = table()
    record = sessions.create()
    sessions.detach(record, now=0.0)
    sessions.resume("s1")
    sessions.detach(record, now=20.0)
    assert sessions.expire(49.0) == []
    assert sessions.expire(50.0) == [record]
    assert record.attachment is Attachment.ENDED
    with pytest.raises(InvalidRequest):
        sessions.resume("s1")


def test_at_the_bound_the_session_that_would_end_first_ends_early() -> None:
    sessions = table(max_detached=2)
    records = [sessions.create() for _ in range(3)]
    assert sessions.detach(records[0], now=0.0) == []
    assert sessions.detach(records[1], now=1.0) == []
    assert sessions.detach(records[2], now=2.0) == [records[0]]
    assert len(sessions) == 2


def test_detaching_twice_is_a_mistake_of_the_caller() -> None:
    sessions = table()
    record = sessions.create()
    sessions.detach(record, now=0.0)
    with pytest.raises(ValueError, match="s1 is detached"):
        sessions.detach(record, now=0.0)
