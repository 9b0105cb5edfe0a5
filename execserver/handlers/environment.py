"""`environment/*` (wire contract, section 10)."""

from __future__ import annotations

from msgspec import Raw

from execserver.handlers.context import Call
from execserver.handlers.registry import handles
from execserver.handlers.replies import Later
from execserver.protocol.methods import ENVIRONMENT_INFO, ENVIRONMENT_SANDBOX, ENVIRONMENT_STATUS
from execserver.protocol.session import NoParams


@handles(ENVIRONMENT_INFO, waits=False)
def info(call: Call, _params: NoParams) -> Raw:
    """Describe the machine; the same object is in the result of `initialize`."""
    return call.services.environment.info


@handles(ENVIRONMENT_STATUS, waits=False)
def status(call: Call, _params: NoParams) -> Raw:
    """Report that the machine takes work."""
    return call.services.environment.status


@handles(ENVIRONMENT_SANDBOX)
def sandbox(call: Call, _params: NoParams) -> Later:
    """Report which sandbox works here; the first call waits for all probes."""
    return Later(call.services.environment.sandbox, repeats=True)
