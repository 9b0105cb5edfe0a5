"""What processes are given and report, and what is collected of it: the records of `Process`."""

from __future__ import annotations

from execserver.client.collecting import CompletedProcess
from execserver.client.event_log import Closed, Event, Exited, Output, ReadState
from execserver.client.recovery import SessionState
from execserver.client.starting import EMPTY_ENVIRONMENT, INHERIT_ENVIRONMENT
from execserver.protocol.process import ExecEnvPolicy, ExecEnvPolicyInherit
from execserver.protocol.resource_limits import (
    EndCause,
    LimitEnforcement,
    ProcessEnd,
    ResourceLimits,
    ResourceUsage,
)

__all__ = [
    "EMPTY_ENVIRONMENT",
    "INHERIT_ENVIRONMENT",
    "Closed",
    "CompletedProcess",
    "EndCause",
    "Event",
    "ExecEnvPolicy",
    "ExecEnvPolicyInherit",
    "Exited",
    "LimitEnforcement",
    "Output",
    "ProcessEnd",
    "ReadState",
    "ResourceLimits",
    "ResourceUsage",
    "SessionState",
]
