"""`environment/*` (wire contract, sections 10 and 14.2)."""

from __future__ import annotations

from msgspec import Raw

from execserver.handlers.context import Call
from execserver.handlers.registry import handles
from execserver.handlers.replies import Later
from execserver.protocol.methods import ENVIRONMENT_INFO, ENVIRONMENT_SANDBOX, ENVIRONMENT_STATUS
from execserver.protocol.session import NoParams


@handles(ENVIRONMENT_INFO)
def info(call: Call, _params: NoParams) -> Raw:
    """Name the user's shell."""
    return call.services.environment.info


@handles(ENVIRONMENT_STATUS)
def status(call: Call, _params: NoParams) -> Raw:
    """Tell that the machine takes work."""
    return call.services.environment.status


@handles(ENVIRONMENT_SANDBOX)
def sandbox(call: Call, _params: NoParams) -> Later:
    """Tell which sandbox works here; the first time this takes as long as trying everything."""
    return Later(call.services.environment.sandbox)
