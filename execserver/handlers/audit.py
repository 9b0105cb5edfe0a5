"""`audit/head`."""

from __future__ import annotations

from execserver.handlers.context import Call
from execserver.handlers.registry import handles
from execserver.protocol.audit import AuditHeadResponse
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.own_methods import AUDIT_HEAD
from execserver.protocol.session import NoParams


@handles(AUDIT_HEAD, waits=False)
def head(call: Call, params: NoParams) -> AuditHeadResponse:
    """Return where the audit log stands."""
    trail = call.services.audit
    if trail is None:
        raise InvalidRequest("this server writes no audit log; its operator can have it do so with --audit")
    records, sha256 = trail.head
    return AuditHeadResponse(records=records, sha256=sha256)
