"""Calling a function inside the view of a sandbox context, without any server.

The view is planned as a server would, from this process's own folder and TMPDIR.  Where namespaces are
refused, Landlock serves what it expresses exactly, and the rest is refused.
"""

from __future__ import annotations

import os

# All that the confined function needs is loaded before: inside, nothing may be importable.
from execserver.files import reading, writing
from execserver.protocol import base64
from execserver.protocol.errors import InternalError, InvalidRequest, os_error_text
from execserver.sandbox.guarded import Guard
from execserver.sandbox.guarded_files import GuardedFiles
from execserver.sandbox.host import Host
from execserver.sandbox.plan import PlanRefused, ViewPlan
from execserver.sandbox.planner import plan_for_files
from execserver.sandbox.policy import file_policy
from execserver.sandbox.view import ViewFailed
from execserver.zygote.confine import confine_self_then_call
from helpers import fs_no_links

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.protocol.sandbox import FileSystemSandboxContext

PRELOADED = (base64, fs_no_links, reading, writing)


def call_confined(context: FileSystemSandboxContext, function: Callable[[GuardedFiles], int]) -> int:
    """Call a function with the guarded operations of the context's view; return its result, an exit status.

    It runs in a fork of this process.  Raises InvalidRequest `failed to prepare fs sandbox: <why>` when there
    can be no such view, and InternalError for a context's folder that is not there.
    """
    plan = _plan(context)

    def call() -> int:
        return function(GuardedFiles(Guard(plan)))

    try:
        try:
            return confine_self_then_call(plan, call)
        except ViewFailed as failed:
            from execserver.zygote.otherwise import call_otherwise  # only where it is needed

            return call_otherwise(plan, call, failed)
    except ViewFailed as failed:
        raise InvalidRequest(f"failed to prepare fs sandbox: {failed}") from None


def _plan(context: FileSystemSandboxContext) -> ViewPlan:
    host = Host(os.environb.get(b"TMPDIR"))
    try:
        if context.cwd is not None:
            os.stat(context.cwd.native())
        return plan_for_files(file_policy(context, host, os.getcwdb()), host)
    except PlanRefused as refused:
        raise InvalidRequest(f"failed to prepare fs sandbox: {refused}") from None
    except OSError as error:
        raise InternalError(os_error_text(error.errno or 0)) from None
