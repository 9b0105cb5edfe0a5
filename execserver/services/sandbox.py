"""From a request's sandbox context to what is done about it: a plan that is carried out, or a refusal.

A plan is made once per context and made anew when a fact of the host that it rests on has changed; the facts
are looked at in every call.  What cannot be enforced exactly is refused, with the reason; nothing here ever
answers "no sandbox" instead.  Where a network file system could be met, or a tree be searched, planning runs
in a thread of a bounded pool.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from execserver.protocol.errors import InternalError, InvalidParams, InvalidRequest, RpcError, os_error_text
from execserver.protocol.permissions import GLOB_PATTERN
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.sandbox.explain import explain
from execserver.sandbox.facts import Facts
from execserver.sandbox.host import Host
from execserver.sandbox.nesting import with_nesting
from execserver.sandbox.own_files import keep_own_files
from execserver.sandbox.placeholder_host import PlaceholderHost
from execserver.sandbox.plan import (
    FILTER_NONE,
    FILTER_PROXY_ROUTED,
    FILTER_RESTRICTED,
    NETWORK_PROXY,
    ROOT_HOST,
    PlanRefused,
    ViewPlan,
)
from execserver.sandbox.plan_record import PlanRecordError, encode_plan
from execserver.sandbox.planner import plan_for_files, plan_for_process
from execserver.sandbox.policy import file_policy, process_policy
from execserver.sandbox.proxy_routes import FAILURE, RouteError, find_routes
from execserver.services.file_pool import FilePool
from execserver.services.mounts import MountTable
from execserver.services.start_request import Confinement
from execserver.settings import Settings
from execserver.zygote.records import (
    BACK_END_LANDLOCK,
    BACK_END_NATIVE,
    SECCOMP_NONE,
    SECCOMP_PROXY_ROUTED,
    SECCOMP_RESTRICTED,
)

REMEMBERED_PLANS = 256  # contexts; the one used longest ago is planned again
REFUSED = "error building bubblewrap command: Fatal error: "  # the contract's words, whatever builds the view
_PLANNING_THREADS = 4
_FILTERS = {
    FILTER_NONE: SECCOMP_NONE,
    FILTER_RESTRICTED: SECCOMP_RESTRICTED,
    FILTER_PROXY_ROUTED: SECCOMP_PROXY_ROUTED,
}

# Tells what enforces a plan here, a BACK_END_* number, or why nothing does.
Choose = Callable[[ViewPlan], int | str]


def always_native(plan: ViewPlan) -> int | str:
    """Take namespaces of our own for every plan; where the kernel refuses them, so is the start."""
    return BACK_END_NATIVE


class _Planned(NamedTuple):
    """The outcome of one planning: a plan with its bytes, or why there is none; and what it rests on."""

    facts: Facts
    plan: ViewPlan | None
    record: bytes = b""
    refusal: str = ""


_Make = Callable[[Facts], ViewPlan]


class SandboxService:
    """Plans the views of one server.  Owns the descriptor of a mount table until `close`."""

    def __init__(
        self,
        settings: Settings,
        inherited: Mapping[bytes, bytes],
        choose: Choose = always_native,
        mounts: MountTable | None = None,
    ) -> None:
        self.choose = choose
        self._server_cwd = os.getcwdb()
        self._inherited = inherited
        self._runtime_dir = inherited.get(b"XDG_RUNTIME_DIR")
        self._file_host = PlaceholderHost(inherited.get(b"TMPDIR"), self._runtime_dir)
        self._mounts = mounts or MountTable()
        self._pool = FilePool(_PLANNING_THREADS, settings.file_call_timeout_s)
        self._remembered: OrderedDict[object, _Planned] = OrderedDict()

    def close(self) -> None:
        """Give back the descriptor; planning still works, in threads."""
        self._mounts.close()

    def files_plan(self, context: FileSystemSandboxContext) -> ViewPlan:
        """Return the plan of an fs/* request that needs a sandbox, as the host is at this moment.

        Equal plans mean equal views: a worker made for one serves the other.  Raises RpcError: InvalidRequest
        `failed to prepare fs sandbox: <why>`, InternalError for a context's folder that is not there.
        """
        host = self._file_host

        def make(facts: Facts) -> ViewPlan:
            if context.cwd is not None:
                _check_folder(context.cwd.native())
            return plan_for_files(file_policy(context, host, self._server_cwd), host, facts)

        planned = self._planned(("files", context), context, host, make, InvalidRequest, "fs")
        if planned.plan is None:
            raise InvalidRequest(f"failed to prepare fs sandbox: {planned.refusal}")
        return planned.plan

    def explain_files(
        self, context: FileSystemSandboxContext, path: bytes, operation: str
    ) -> dict[str, str] | None:
        """Return path, rule and granted access for what an fs/* request was refused; None if not certain.

        `operation` is READ or WRITE.  It is not said where looking could take long.
        """
        if not self._mounts.all_local():
            return None
        found = explain(
            file_policy(context, self._file_host, self._server_cwd), self._file_host, path, operation
        )
        return None if found is None else found[0]

    def process_start(
        self,
        context: FileSystemSandboxContext,
        cwd: bytes,
        enforce_managed_network: bool,
        env: Mapping[bytes, bytes],
    ) -> Confinement:
        """Return how to start a process whose context and directory have been checked.

        A policy that cannot be enforced gives a refusal, which a child tells in the process's place.  Raises
        InvalidParams `failed to prepare process sandbox: <why>` where this machine is the obstacle.
        """
        if enforce_managed_network:
            try:
                find_routes([name + b"=" + value for name, value in env.items()])
            except RouteError as error:
                return Confinement(refusal=f"codex-linux-sandbox: {FAILURE}{error}", refusal_status=101)
        host = PlaceholderHost(env.get(b"TMPDIR"), self._runtime_dir)

        def make(facts: Facts) -> ViewPlan:
            policy = process_policy(context, host, cwd)
            return plan_for_process(policy, host, facts, enforce_managed_network)

        own_cwd = cwd if context.cwd is None else None
        key = ("process", context, own_cwd, host.tmpdir, enforce_managed_network)
        planned = self._planned(key, context, host, make, InvalidParams, "process")
        if planned.plan is None:
            return Confinement(refusal=f"{REFUSED}{planned.refusal}")
        return self._confinement(planned.plan, planned.record, context.use_legacy_landlock)

    def _confinement(self, plan: ViewPlan, record: bytes, use_landlock: bool) -> Confinement:
        if plan.root == ROOT_HOST and plan.network != NETWORK_PROXY:
            return Confinement(seccomp=_FILTERS[plan.syscall_filter])
        back_end = self.choose(plan)
        if isinstance(back_end, str):
            raise InvalidParams(f"failed to prepare process sandbox: {back_end}")
        return Confinement(plan=record, back_end=back_end, own_init=back_end != BACK_END_LANDLOCK)

    def _planned(
        self,
        key: object,
        context: FileSystemSandboxContext,
        host: Host,
        make: _Make,
        error_type: type[RpcError],
        what: str,
    ) -> _Planned:
        """Return what is remembered for a key while its facts hold, else plan."""
        known = self._remembered.get(key)
        all_local = self._mounts.all_local()
        # What is remembered has searched nothing: a plan with patterns is never cacheable.
        if known is not None and all_local and known.facts.hold(host):
            self._remembered.move_to_end(key)
            return known
        searches = any(entry.kind == GLOB_PATTERN for entry in context.permissions.entries or ())
        try:
            if all_local and not searches:
                return self._current(key, host, make)
            return self._pool.call(lambda pause: self._current(key, host, make))
        except OSError as error:
            text = os_error_text(error.errno or 0)
            raise error_type(f"failed to prepare {what} sandbox: {text}") from None

    def _current(self, key: object, host: Host, make: _Make) -> _Planned:
        known = self._remembered.get(key)
        if known is not None and known.facts.hold(host):
            self._remember(key, known)
            return known
        planned = _plan(make, host, self._inherited)
        if planned.facts.cacheable:
            self._remember(key, planned)
        else:
            self._remembered.pop(key, None)
        return planned

    def _remember(self, key: object, planned: _Planned) -> None:
        self._remembered[key] = planned
        self._remembered.move_to_end(key)
        if len(self._remembered) > REMEMBERED_PLANS:
            self._remembered.popitem(last=False)


def _plan(make: _Make, host: Host, inherited: Mapping[bytes, bytes]) -> _Planned:
    facts = Facts()
    try:
        plan = make(facts)
        plan = with_nesting(keep_own_files(plan, facts.noting(host), inherited), inherited)
        return _Planned(facts, plan, encode_plan(plan))
    except (PlanRefused, PlanRecordError) as refused:
        return _Planned(facts, None, refusal=str(refused))


def _check_folder(path: bytes) -> None:
    """Raise InternalError unless a folder that a context names is there."""
    try:
        os.stat(path)
    except OSError as error:
        raise InternalError(os_error_text(error.errno or 0)) from None
