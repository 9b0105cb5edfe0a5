"""What the zygote reads from requests for sandboxes; every fault is a SpawnFailure."""

from __future__ import annotations

import errno
import os

from execserver.protocol.errors import strerror
from execserver.sandbox.plan_record import PlanRecordError, decode_plan
from execserver.sandbox.proxy.routes import FAILURE, RouteError, find_routes
from execserver.zygote.spawn import SpawnFailure
from execserver.zygote.stages import STAGE_ROOT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.sandbox.plan import SandboxPlan
    from execserver.sandbox.proxy.routes import Routes


def routes_of(env: Sequence[bytes]) -> Routes:
    """Return the routes to the host's proxies that an environment names, or raise SpawnFailure."""
    try:
        return find_routes(env)
    except RouteError as error:
        raise SpawnFailure(STAGE_ROOT, errno.EINVAL, details=[os.fsencode(f"{FAILURE}{error}")]) from None


def decoded_plan(plan: bytes) -> SandboxPlan:
    """Return the decoded plan of a request, or raise SpawnFailure."""
    try:
        return decode_plan(plan)
    except PlanRecordError as error:
        raise SpawnFailure(STAGE_ROOT, errno.EINVAL, details=[os.fsencode(str(error))]) from None


def root_failure(error: OSError, what: str) -> SpawnFailure:
    """Return the failure of a sandbox root that the kernel refused; `what` goes before the error text."""
    number = error.errno or errno.EIO
    return SpawnFailure(STAGE_ROOT, number, details=[os.fsencode(f"{what}{strerror(number)}")])
