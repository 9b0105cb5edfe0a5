"""From a request's sandbox context to what is done about it: a plan that is carried out, or a refusal.

A plan is made once per context and made anew when a fact of the host that it rests on has changed.  What
cannot be enforced exactly is refused, with the reason; nothing here ever answers "no sandbox" instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.sandbox.intent import cannot_enforce_files, cannot_enforce_process
from execserver.sandbox.plan import ViewPlan
from execserver.settings import Settings


class ProcessView(NamedTuple):
    """How one sandboxed process is started.

    `plan` is the view, or None where files are not restricted; then only `syscall_filter` (a FILTER_* name of
    the plan) applies.  `refusal` is the text a child prints, with `refusal_status`, instead of running.
    """

    plan: ViewPlan | None = None
    syscall_filter: str = "none"
    refusal: bytes = b""
    refusal_status: int = 1


class SandboxService:
    """Plans the views of one server."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def files_plan(self, context: FileSystemSandboxContext) -> ViewPlan:
        """Return the plan of an fs/* request that needs a sandbox, as the host is at this moment.

        Equal plans mean equal views: a worker made for one serves the other.  Raises RpcError: InvalidRequest
        `failed to prepare fs sandbox: <why>`, InternalError for a context's folder that is not there.
        """
        raise cannot_enforce_files()

    def process_start(
        self,
        context: FileSystemSandboxContext,
        cwd: bytes,
        enforce_managed_network: bool,
        env: Mapping[bytes, bytes],
    ) -> ProcessView:
        """Return how to start a process whose context and directory have been checked.

        Raises InvalidParams `failed to prepare process sandbox: <why>`.
        """
        raise cannot_enforce_process()
