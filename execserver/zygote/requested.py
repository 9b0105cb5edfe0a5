"""What the zygote reads out of requests for sandboxes, with every fault as the failure of the start."""

from __future__ import annotations

import errno
import os

from execserver.protocol.errors import strerror
from execserver.sandbox import bwrap, privileges, seccomp
from execserver.sandbox.plan import READ, Mount, PlanRefused
from execserver.sandbox.plan_record import PlanRecordError, decode_plan
from execserver.sandbox.proxy_bridge import bring_up_loopback, pass_listeners
from execserver.sandbox.proxy_routes import FAILURE, RouteError, find_routes
from execserver.zygote.records import BACK_END_BUBBLEWRAP, STAGE_VIEW
from execserver.zygote.spawn import SpawnFailure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.bwrap import Bwrap
    from execserver.sandbox.placeholders import Lease
    from execserver.sandbox.plan import ViewPlan
    from execserver.sandbox.proxy_bridge import Bridge
    from execserver.sandbox.proxy_routes import Routes
    from execserver.sandbox.syscalls import Kernel
    from execserver.zygote.records import SpawnRequest


def covers_of(lease: Lease | None) -> list[Mount]:
    """Return the mounts that keep placeholders as they are; each must still be the object that is locked."""
    if lease is None:
        return []
    # The lease holds them in the order of the missing paths.
    return [
        Mount(READ, missing.path, missing.path, held.identity)
        for missing, held in zip(lease.covered, lease.held, strict=False)
    ]


def preparing_routes(routes: Routes, bridge: Bridge) -> Callable[[Sequence[bytes]], Sequence[bytes]]:
    """Return what, in a new network, makes ways to the bridge and puts them into an environment."""

    def prepare(env: Sequence[bytes]) -> Sequence[bytes]:
        bring_up_loopback()
        return routes.rewrite(env, pass_listeners(bridge.channel, len(routes.endpoints)))

    return prepare


def routes_of(env: Sequence[bytes]) -> Routes:
    """Return the routes of an environment to proxies of the host, or raise SpawnFailure."""
    try:
        return find_routes(env)
    except RouteError as error:
        raise SpawnFailure(STAGE_VIEW, errno.EINVAL, details=[os.fsencode(f"{FAILURE}{error}")]) from None


def planned(request: SpawnRequest) -> tuple[ViewPlan | None, Bwrap | None]:
    """Return the plan of a request, None if there is none, and the bubblewrap that is to carry it out, if so.

    Raises SpawnFailure.
    """
    if request.back_end == BACK_END_BUBBLEWRAP:
        program, plan, _ = decoded_wrapping(request.plan)
        return plan, program
    return decoded_plan(request.plan) if request.plan else None, None


def decoded_plan(plan: bytes) -> ViewPlan:
    """Return the plan of a request, or raise SpawnFailure."""
    try:
        return decode_plan(plan)
    except PlanRecordError as error:
        raise SpawnFailure(STAGE_VIEW, errno.EINVAL, details=[os.fsencode(str(error))]) from None


def decoded_wrapping(record: bytes) -> tuple[Bwrap, ViewPlan, bytes]:
    """Return the bubblewrap a request names, the plan, and its bytes; or raise SpawnFailure."""
    try:
        program, rest = bwrap.decode(record)
    except PlanRefused as error:
        raise SpawnFailure(STAGE_VIEW, errno.EINVAL, details=[os.fsencode(str(error))]) from None
    return program, decoded_plan(rest), rest


def filter_self(kernel: Kernel, syscall_filter: str) -> None:
    """Put this process under a filter for good."""
    privileges.no_new_privileges(kernel)
    seccomp.install(kernel, syscall_filter)


def tying_to_parent(kernel: Kernel) -> Callable[[], None]:
    """Return what makes a forked child die with this process."""
    parent = os.getpid()

    def tie() -> None:
        privileges.die_with_parent(kernel)
        if os.getppid() != parent:
            os._exit(1)

    return tie


def view_failure(error: OSError, what: str) -> SpawnFailure:
    """Return the failure of a view that the kernel refused."""
    number = error.errno or errno.EIO
    return SpawnFailure(STAGE_VIEW, number, details=[os.fsencode(f"{what}{strerror(number)}")])
