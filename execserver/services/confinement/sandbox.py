"""From a request's sandbox context to a sandbox plan, or to a refusal.

A plan is made once for each context, and made anew when one of its host facts has changed; every call checks
the facts.  What cannot be enforced exactly is refused, with the reason; nothing here ever falls back to "no
sandbox".  Planning runs in a thread of a bounded pool if it could touch a network file system or searches a
tree.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from execserver.protocol.errors import InternalError, InvalidParams, InvalidRequest, RpcError, os_error_text
from execserver.protocol.permissions import GLOB_PATTERN
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.runtime_paths import certificate_folder
from execserver.sandbox.client_limits import Limits, lay
from execserver.sandbox.masks.host import KnownMaskTargets, MaskTargetHost
from execserver.sandbox.nesting import with_nesting
from execserver.sandbox.own_files import keep_own_files, show_certificates
from execserver.sandbox.plan import (
    FILTER_NONE,
    NETWORK_PROXY,
    ROOT_HOST,
    PlanRefused,
    SandboxPlan,
)
from execserver.sandbox.plan_record import PlanRecordError, encode_plan
from execserver.sandbox.policy.explain import explain, readable
from execserver.sandbox.policy.facts import Facts
from execserver.sandbox.policy.host import Host
from execserver.sandbox.policy.planner import plan_for_files, plan_for_process
from execserver.sandbox.policy.policy import file_policy, process_policy
from execserver.sandbox.proxy.routes import FAILURE, RouteError, find_routes
from execserver.services.file_pool import FilePool
from execserver.services.mounts import MountTable
from execserver.settings import Settings
from execserver.zygote.confinement import NATIVE, UNCONFINED, Confinement, filtered, refused

REMEMBERED_PLANS = 256  # contexts; the least recently used one is forgotten
REFUSED = "error building bubblewrap command: Fatal error: "  # the contract's words, for every back end
_PLANNING_THREADS = 4

# Returns the back end for a plan as a confinement without its plan, or the reason why there is none.
Choose = Callable[[SandboxPlan], Confinement | str]


def always_native(plan: SandboxPlan) -> Confinement | str:
    """Choose the native back end for every plan; if the kernel refuses namespaces, the start fails."""
    return Confinement(NATIVE)


class _Planned(NamedTuple):
    """The result of planning: a plan with its encoding, or the refusal; and the host facts it rests on."""

    facts: Facts
    plan: SandboxPlan | None
    record: bytes = b""
    refusal: str = ""


_Make = Callable[[Facts], SandboxPlan]


class SandboxService:
    """Plans the sandboxes of one server.  Owns the descriptor of a mount table until `close`."""

    def __init__(
        self,
        settings: Settings,
        inherited: Mapping[bytes, bytes],
        choose: Choose = always_native,
        mounts: MountTable | None = None,
        choose_for_commands: Choose | None = None,
    ) -> None:
        """`choose` is for file workers and, unless they have a choice of their own, for commands."""
        self.choose = choose
        self.choose_for_commands = choose_for_commands or choose
        self._server_cwd = os.getcwdb()
        self._inherited = inherited
        self._hidden: tuple[bytes, ...] = ()
        self._mask_targets = KnownMaskTargets(inherited.get(b"XDG_RUNTIME_DIR"))
        self._file_host = MaskTargetHost(self._mask_targets, inherited.get(b"TMPDIR"))
        self._mounts = mounts or MountTable()
        self._pool = FilePool(_PLANNING_THREADS, settings.file_call_timeout_s)
        self._remembered: OrderedDict[object, _Planned] = OrderedDict()

    def close(self) -> None:
        """Close the descriptor; planning still works, in threads."""
        self._mounts.close()

    def files_plan(self, context: FileSystemSandboxContext, limits: Limits | None = None) -> SandboxPlan:
        """Return the plan for an fs/* request that needs a sandbox, as the host is at this moment.

        `limits` are those of the client, laid over what the context grants.

        Equal plans mean equal sandbox roots: a worker made for one serves the other.  Raises InvalidRequest
        `failed to prepare fs sandbox: <why>`, or InternalError if the context's directory does not exist.
        """
        host = self._file_host

        def make(facts: Facts) -> SandboxPlan:
            if context.cwd is not None:
                _check_folder(context.cwd.native())
            plan = plan_for_files(file_policy(context, host, self._server_cwd), host, facts)
            return plan if limits is None else lay(limits, plan, facts.noting(host))

        planned = self._planned(("files", context, limits), context, host, make, InvalidRequest, "fs")
        if planned.plan is None:
            raise InvalidRequest(f"failed to prepare fs sandbox: {planned.refusal}")
        return planned.plan

    def explain_files(
        self, context: FileSystemSandboxContext, path: bytes, operation: str
    ) -> dict[str, str] | None:
        """Return the path, rule and granted access that made an fs/* request fail; None if not certain.

        `operation` is READ or WRITE.  Also None if a look at the host could take long.
        """
        if not self._mounts.all_local():
            return None
        found = explain(
            file_policy(context, self._file_host, self._server_cwd), self._file_host, path, operation
        )
        return None if found is None else found[0]

    def visible(
        self, context: FileSystemSandboxContext, limits: Limits | None, paths: list[bytes]
    ) -> list[bool]:
        """Return of each path without symlinks whether an fs/* request may read it; it need not exist.

        Raises RpcError as `files_plan` does.
        """
        plan = self.files_plan(context, limits)

        def look() -> list[bool]:
            policy = file_policy(context, self._file_host, self._server_cwd)
            return readable(policy, self._file_host, plan, paths)

        return look() if self._mounts.all_local() else self._pool.call(lambda pause: look())

    def process_start(
        self,
        context: FileSystemSandboxContext,
        cwd: bytes,
        enforce_managed_network: bool,
        env: Mapping[bytes, bytes],
        limits: Limits | None = None,
        masks: bool = False,
    ) -> Confinement:
        """Return the confinement of a process whose context and working directory have been checked.

        `limits` are those of the client, laid over what the context grants.  A process that `masks` has
        credentials masked, and sees the certificates that it is to trust.
        A policy that cannot be enforced gives a refusal, which a child prints in place of the process.
        Raises InvalidParams `failed to prepare process sandbox: <why>` if this machine is the obstacle.
        """
        if enforce_managed_network:
            try:
                find_routes([name + b"=" + value for name, value in env.items()])
            except RouteError as error:
                return refused(f"codex-linux-sandbox: {FAILURE}{error}", 101)
        host = MaskTargetHost(self._mask_targets, env.get(b"TMPDIR"))

        def make(facts: Facts) -> SandboxPlan:
            policy = process_policy(context, host, cwd)
            plan = plan_for_process(policy, host, facts, enforce_managed_network)
            plan = plan if limits is None else lay(limits, plan, facts.noting(host))
            folder = certificate_folder(self._inherited)
            return show_certificates(plan, facts.noting(host), folder) if masks else plan

        # The plan depends on the process's directory only if the context names none, so that starts in many
        # directories share one plan.
        own_cwd = cwd if context.cwd is None else None
        key = ("process", context, own_cwd, host.tmpdir, enforce_managed_network, limits, masks)
        planned = self._planned(key, context, host, make, InvalidParams, "process")
        if planned.plan is None:
            return refused(f"{REFUSED}{planned.refusal}")
        return self._confinement(planned.plan, planned.record)

    def _confinement(self, plan: SandboxPlan, record: bytes) -> Confinement:
        # The host's own root needs no back end with mounts, only a filter, if that; a managed proxy needs a
        # network namespace.
        if plan.root == ROOT_HOST and plan.network != NETWORK_PROXY:
            return UNCONFINED if plan.syscall_filter == FILTER_NONE else filtered(plan.syscall_filter)
        chosen = self.choose_for_commands(plan)
        if isinstance(chosen, str):
            raise InvalidParams(f"failed to prepare process sandbox: {chosen}")
        return chosen.with_plan(record)

    def _planned(
        self,
        key: object,
        context: FileSystemSandboxContext,
        host: Host,
        make: _Make,
        error_type: type[RpcError],
        what: str,
    ) -> _Planned:
        """Return the remembered plan for a key while its host facts hold, else plan."""
        known = self._remembered.get(key)
        all_local = self._mounts.all_local()
        # Checking the facts of a remembered plan is fast: a plan that searched a tree is never cached.
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

    def hide(self, folder: str) -> None:
        """Have no sandboxed command see a folder; before the first plan."""
        self._hidden = (*self._hidden, os.path.realpath(os.fsencode(folder)))

    def _current(self, key: object, host: Host, make: _Make) -> _Planned:
        # Look again: this may run in a thread, after another request has made the plan.
        known = self._remembered.get(key)
        if known is not None and known.facts.hold(host):
            self._remember(key, known)
            return known
        planned = _plan(make, host, self._inherited, self._hidden)
        if not host.shows(planned.facts.stamps):
            # It has made folders of ours, which the policy or a look before had found missing.
            planned = _plan(make, host, self._inherited, self._hidden)
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


def _plan(
    make: _Make, host: Host, inherited: Mapping[bytes, bytes], hidden: tuple[bytes, ...] = ()
) -> _Planned:
    facts = Facts()
    try:
        plan = make(facts)
        plan = with_nesting(keep_own_files(plan, facts.noting(host), inherited, hidden), inherited)
        return _Planned(facts, plan, encode_plan(plan))
    except (PlanRefused, PlanRecordError) as refused:
        return _Planned(facts, None, refusal=str(refused))


def _check_folder(path: bytes) -> None:
    """Raise InternalError unless the directory that a context names exists."""
    try:
        os.stat(path)
    except OSError as error:
        raise InternalError(os_error_text(error.errno or 0)) from None
