"""The rules of a session, with a clock that the test moves."""

from __future__ import annotations

from itertools import count

import pytest

from execserver.client.errors import (
    ConnectFailed,
    InvalidRequestError,
    ProtocolViolation,
    RegistryRefused,
    ResumeFailed,
    SessionBusyError,
    TransportClosed,
)
from execserver.client.options import ExecServerClientConnectOptions
from execserver.client.rules.recovery import SessionRules, SessionState, check_resumed
from execserver.protocol.session import InitializeResponse, KeptSession

OPTIONS = ExecServerClientConnectOptions(client_name="me", resume_window=10.0, resume_interval=0.5)
LOST = TransportClosed("cut")


def opened(options: ExecServerClientConnectOptions = OPTIONS, now: float = 100.0) -> SessionRules:
    rules = SessionRules(options, can_resume=True)
    rules.adopt(InitializeResponse(session_id="s"), now)
    return rules


def test_a_new_session_says_only_what_the_contract_has() -> None:
    rules = SessionRules(OPTIONS, can_resume=True)
    assert rules.state is SessionState.NEW
    assert rules.introduction(None) == {"clientName": "me", "resumeSessionId": None}


def test_time_and_name_of_a_session_are_asked_for_once() -> None:
    options = OPTIONS.replace(session_name="work", keep_ms=0, resume_session_name="old")
    wanted = {"resumeSessionName": "old", "sessionName": "work", "keepMs": 0}
    plain = {"clientName": "me", "resumeSessionId": "s"}
    assert SessionRules(options, can_resume=True).introduction("s") == plain | wanted
    assert opened(options).introduction("s") == plain


def test_what_a_server_did_not_tell_again_stays_as_it_was() -> None:
    rules = SessionRules(OPTIONS, can_resume=True)
    kept = KeptSession(keep_ms=5, name="n")
    rules.adopt(InitializeResponse(session_id="s", kept=kept), 0.0)
    rules.adopt(InitializeResponse(session_id="s"), 1.0)
    assert (rules.state, rules.session_id, rules.kept) == (SessionState.OPEN, "s", kept)


def test_another_session_than_the_one_asked_for_is_a_violation() -> None:
    found = InitializeResponse(session_id="other")
    check_resumed(None, found)
    check_resumed("other", found)
    with pytest.raises(ProtocolViolation, match="asked for session s, got other"):
        check_resumed("s", found)


def test_a_busy_session_is_asked_for_again_until_the_window_is_over() -> None:
    rules = SessionRules(OPTIONS, can_resume=True)
    assert rules.pause_while_busy(100.0, 100.0) == 0.5
    assert rules.pause_while_busy(100.0, 109.5) == 0.5
    assert rules.pause_while_busy(100.0, 109.6) is None


def test_a_server_over_pipes_is_lost_for_good() -> None:
    rules = SessionRules(OPTIONS, can_resume=False)
    end = rules.lose(LOST)
    assert type(end) is TransportClosed
    assert str(end) == "the connection ended: cut"


def test_attempts_fill_the_window_and_no_more() -> None:
    rules = opened(now=100.0)
    assert rules.lose(LOST) is None
    assert rules.state is SessionState.RESUMING
    recovery = rules.recover(LOST, 200.0)
    assert recovery.first_pause == 0.0
    now, attempts = 200.0, 0
    while recovery.left(now) > 0:
        attempts += 1
        pause = recovery.failed(ConnectFailed("refused"), now)
        assert pause == pytest.approx(min(0.5, 210.0 - now))
        now += pause or 0.0
    assert attempts == 20
    assert now == pytest.approx(210.0)
    end = recovery.end()
    assert str(end) == "the connection was lost (cut) and not resumed within 10 s: refused"
    assert end.__traceback__ is None


def test_a_connection_that_was_lost_at_once_is_not_replaced_at_once() -> None:
    rules = opened(now=100.0)
    assert rules.recover(LOST, 100.4).first_pause == 0.5


def test_the_pauses_of_the_owner_count() -> None:
    rules = SessionRules(OPTIONS, can_resume=True, pauses=lambda: iter(range(1, 100)))
    recovery = rules.recover(LOST, 0.0)
    assert [recovery.failed(LOST, 0.0), recovery.failed(SessionBusyError(-32010, "busy"), 1.0)] == [1, 2]
    assert recovery.failed(LOST, 9.5) == 0.5


@pytest.mark.parametrize(
    "refusal",
    [InvalidRequestError(-32600, "unknown session"), ProtocolViolation("nonsense"), RegistryRefused("no")],
)
def test_a_refusal_is_final(refusal: Exception) -> None:
    recovery = opened().recover(LOST, 200.0)
    assert recovery.failed(refusal, 200.0) is None  # type: ignore[arg-type]
    end = recovery.end()
    assert type(end) is ResumeFailed
    assert str(end) == f"the session could not be resumed: {refusal}"


def test_every_caller_gets_an_error_of_his_own_for_the_end() -> None:
    rules = opened()
    rules.finish(ResumeFailed("over"))
    assert rules.state is SessionState.ENDED
    first, second = rules.fresh_end(), rules.fresh_end()
    assert (type(first), str(first)) == (ResumeFailed, "over")
    assert first is not second


def test_a_call_that_ends_every_connection_is_given_up() -> None:
    rules = opened()
    lost, broken = TransportClosed("gone"), TransportClosed("broken")
    broken.__cause__ = ProtocolViolation("too big")
    assert next(losses for losses in count(1) if not rules.may_send_again(losses, lost)) == 21
    assert next(losses for losses in count(1) if not rules.may_send_again(losses, broken)) == 3
