"""What a start asks for: the params of `process/start` from what a caller says.  No I/O."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from execserver.client.rules import wire
from execserver.client.rules.wire import RemotePath, Sandbox
from execserver.protocol.process import ExecEnvPolicy, ExecEnvPolicyInherit, ExecParams, RecordedStreams
from execserver.protocol.resource_limits import ResourceLimits

INHERIT_ENVIRONMENT: Final = ExecEnvPolicy(
    inherit=ExecEnvPolicyInherit.ALL, ignore_default_excludes=True, exclude=(), set={}, include_only=()
)
"""The whole environment of the server."""

EMPTY_ENVIRONMENT: Final = ExecEnvPolicy(
    inherit=ExecEnvPolicyInherit.NONE, ignore_default_excludes=True, exclude=(), set={}, include_only=()
)
"""None of the server's variables."""


def start_params(
    argv: Sequence[str],
    *,
    cwd: RemotePath,
    env: Mapping[str, str] | None,
    env_policy: ExecEnvPolicy | None,
    tty: bool,
    pipe_stdin: bool,
    arg0: str | None,
    sandbox: Sandbox,
    process_id: str | None,
    process_name: str | None,
    limits: ResourceLimits | None = None,
    record: str | None = None,
) -> ExecParams:
    """Return the params of a start; without `process_id` with a random one.

    Raises `InvalidPath` and ValueError for what a server would not understand, TypeError for bytes.
    """
    wire.check_words((*argv, arg0, *(env or {}).values()))
    if env is None and env_policy is None:
        env_policy = INHERIT_ENVIRONMENT
    return ExecParams(
        process_id=os.urandom(16).hex() if process_id is None else process_id,
        argv=tuple(argv),
        cwd=wire.path_uri(cwd),
        env_policy=env_policy,
        env=dict(env or {}),
        tty=tty,
        pipe_stdin=pipe_stdin,
        arg0=arg0,
        sandbox=wire.sandbox_context(sandbox),
        process_name=msgspec.UNSET if process_name is None else process_name,
        limits=msgspec.UNSET if limits is None else limits,
        record=msgspec.UNSET if record is None else RecordedStreams(record),
    )
