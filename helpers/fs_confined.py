"""Calling a function in the sandbox root of a sandbox context, without any server.

The plan is made as a server would, from this process's own cwd and TMPDIR.  Where namespaces are refused,
Landlock serves what it expresses exactly, and the rest is refused.
"""

from __future__ import annotations

import os

# All that the confined function needs is loaded before: in the sandbox root, nothing may be importable.
from execserver.files import reading, walk, writing
from execserver.protocol import base64, pieces
from execserver.protocol.errors import InternalError, InvalidRequest, os_error_text
from execserver.sandbox.files.guard import PathGuard
from execserver.sandbox.files.operations import GuardedFiles
from execserver.sandbox.plan import PlanRefused, SandboxPlan
from execserver.sandbox.policy.host import Host
from execserver.sandbox.policy.planner import plan_for_files
from execserver.sandbox.policy.policy import file_policy
from execserver.sandbox.rootfs.builder import RootFailed
from execserver.zygote.confine.standalone import confine_self_then_call

from . import fs_discovery, fs_no_symlinks, fs_open

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.protocol.sandbox import FileSystemSandboxContext

PRELOADED = (base64, fs_discovery, fs_no_symlinks, fs_open, pieces, reading, walk, writing)


def call_confined(context: FileSystemSandboxContext, function: Callable[[GuardedFiles], int]) -> int:
    """Call a function with the file operations behind the path guard of a context; return its exit status.

    It runs in a fork of this process.  Raises InvalidRequest `failed to prepare fs sandbox: <why>` when no
    such sandbox root can be made, and InternalError for a folder of the context that does not exist.
    """
    plan = _plan(context)

    def call() -> int:
        return function(GuardedFiles(PathGuard(plan)))

    try:
        try:
            return confine_self_then_call(plan, call)
        except RootFailed as failed:
            from execserver.zygote.confine.fallback import call_otherwise  # only where it is needed

            return call_otherwise(plan, call, failed)
    except RootFailed as failed:
        raise InvalidRequest(f"failed to prepare fs sandbox: {failed}") from None


def _plan(context: FileSystemSandboxContext) -> SandboxPlan:
    host = Host(os.environb.get(b"TMPDIR"))
    try:
        if context.cwd is not None:
            os.stat(context.cwd.native())
        return plan_for_files(file_policy(context, host, os.getcwdb()), host)
    except PlanRefused as refused:
        raise InvalidRequest(f"failed to prepare fs sandbox: {refused}") from None
    except OSError as error:
        raise InternalError(os_error_text(error.errno or 0)) from None
