"""`initialize` and `session/*`: open, resume, keep and list sessions (wire contract, sections 6 and 16)."""

from __future__ import annotations

import logging
import time

from execserver.core.sessions import Attachment
from execserver.handlers.context import Call
from execserver.handlers.registry import handles
from execserver.handlers.replies import InTurn, Reply
from execserver.protocol.errors import InvalidParams, RpcError
from execserver.protocol.methods import INITIALIZE
from execserver.protocol.own_methods import SESSION_END, SESSION_KEEP, SESSION_LIST, SESSION_PROCESSES
from execserver.protocol.session import (
    InitializeParams,
    KeptSession,
    NoParams,
    SessionEndParams,
    SessionEndResponse,
    SessionKeepParams,
    SessionListEntry,
    SessionListResponse,
)
from execserver.protocol.watching import SessionProcessesResponse
from execserver.services.sessions.host import Session
from execserver.services.sessions.process_list import session_entry

_log = logging.getLogger(__name__)


@handles(INITIALIZE, waits=False)
def initialize(call: Call, params: InitializeParams) -> Reply | InTurn:
    """Attach the connection to a session; notifications are sent once the answer is queued."""
    call.connection.rules.check_initialize()
    resumed = params.resume_session_id
    # The end of its old connection may have to be waited for.
    if params.resume_session_name is not None or (
        resumed is not None and call.services.sessions.is_attached(resumed)
    ):
        return InTurn(lambda: _initialized(call, params))
    return _initialized(call, params)


def _initialized(call: Call, params: InitializeParams) -> Reply:
    connection = call.connection
    resumed = params.resume_session_id is not None or params.resume_session_name is not None
    session = _opened(call, params)
    call.take_session(session)
    connection.rules.initialize_succeeded()
    connection.client_name = session.client_name = params.client_name
    result = call.services.environment.initialize_result(session.session_id, terms(call, session))

    def begin() -> None:
        sink = connection.sink
        sink.hold()
        session.attach(sink, connection.questions)
        sink.release()  # the answer leaves now, and need not wait for the log
        _log.info(
            "session %s: session=%.8s client=%.80r way=%s name=%r",
            "resumed" if resumed else "opened",
            session.session_id,  # its beginning only: who knows the whole can resume it
            params.client_name,
            session.identity.way,
            session.identity.name,
        )

    # What was kept for a session that is resumed leaves together with the answer.
    return Reply(result, begin, leaves_first=not resumed)


def _opened(call: Call, params: InitializeParams) -> Session:
    """Return the session that a client wants, kept as it asks."""
    sessions, identity = call.services.sessions, call.connection.identity
    resumed = params.resume_session_id
    if params.resume_session_name is not None:
        if resumed is not None:
            raise InvalidParams("resumeSessionId and resumeSessionName exclude each other")
        resumed = sessions.kept.named(identity, params.resume_session_name).session_id
    session = sessions.open(identity) if resumed is None else sessions.resume(resumed, identity)
    if params.keep_ms is None and params.session_name is None:
        return session
    try:
        sessions.kept.keep(session, params.keep_ms or None, params.session_name)
    except RpcError:
        if resumed is None:
            session.record.keep_s = 0.0  # nobody knows it
        sessions.detach(session)
        raise
    return session


def terms(call: Call, session: Session) -> KeptSession | None:
    """Return how long a session stays and its name; None if nobody has asked for either."""
    sessions = call.services.sessions
    return sessions.kept.terms(session) if sessions.any_kept else None


@handles(SESSION_KEEP)
def keep(call: Call, params: SessionKeepParams) -> KeptSession:
    """Change the time and the name of this session."""
    kept = call.services.sessions.kept
    kept.keep(call.session, params.keep_ms, params.name)
    found = kept.terms(call.session)
    assert found is not None
    return found


@handles(SESSION_LIST)
def list_sessions(call: Call, params: NoParams) -> SessionListResponse:
    """List this session and the kept or named ones of its peer."""
    sessions = call.services.sessions
    now = time.monotonic()
    entries = [
        _entry(one, call.session, now, sessions.time_of(one)) for one in sessions.kept.visible(call.session)
    ]
    return SessionListResponse(sessions=tuple(entries))


def _entry(session: Session, own: Session, now: float, keep_s: float) -> SessionListEntry:
    record = session.record
    attached = record.attachment is Attachment.ATTACHED
    return SessionListEntry(
        session_id=session.session_id,
        name=session.name,
        attached=attached,
        own=session is own,
        client_name=session.client_name,
        created_at_ms=int(session.created_at * 1000),
        keep_ms=int(keep_s * 1000),
        expires_in_ms=None if attached else max(0, int((record.expires_at - now) * 1000)),
        processes=sum(not process.state.exited for _, process in session.processes),
    )


@handles(SESSION_END)
def end(call: Call, params: SessionEndParams) -> SessionEndResponse:
    """End a detached session of the same peer."""
    sessions = call.services.sessions
    for session in sessions.kept.visible(call.session):
        if session.session_id == params.session_id:
            sessions.end(session)
            return SessionEndResponse(ended=True)
    return SessionEndResponse(ended=False)


@handles(SESSION_PROCESSES)
def list_processes(call: Call, params: NoParams) -> SessionProcessesResponse:
    """List the processes of all sessions that the peer can see."""
    seen = call.services.sessions.kept.visible(call.session)
    found = [
        session_entry(session, process_id, one) for session in seen for process_id, one in session.processes
    ]
    return SessionProcessesResponse(processes=tuple(found))
