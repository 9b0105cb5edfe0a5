"""`initialize`: open a session or resume a detached one (wire contract, sections 6.1 and 6.5)."""

from __future__ import annotations

import logging

from execserver.handlers.context import Call
from execserver.handlers.registry import handles
from execserver.handlers.replies import Reply
from execserver.protocol.methods import INITIALIZE
from execserver.protocol.session import InitializeParams

_log = logging.getLogger(__name__)


@handles(INITIALIZE)
def initialize(call: Call, params: InitializeParams) -> Reply:
    """Attach the connection to a session; notifications are sent once the answer is queued."""
    connection = call.connection
    connection.rules.check_initialize()
    sessions = call.services.sessions
    resumed = params.resume_session_id
    identity = connection.identity
    session = sessions.open(identity) if resumed is None else sessions.resume(resumed, identity)
    call.take_session(session)
    connection.rules.initialize_succeeded()
    connection.client_name = params.client_name
    _log.info(
        "session %s: session=%.8s client=%.80r way=%s name=%r",
        "opened" if resumed is None else "resumed",
        session.session_id,  # its beginning only: who knows the whole can resume it
        params.client_name,
        identity.way,
        identity.name,
    )
    result = call.services.environment.initialize_result(session.session_id)
    return Reply(result, lambda: session.attach(connection.sink))
