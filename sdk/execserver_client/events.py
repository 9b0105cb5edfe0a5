"""What processes are given and report, and what is collected of it: the records of `Process`."""

from __future__ import annotations

from execserver.client.rules.collecting import CompletedProcess
from execserver.client.rules.event_log import Closed, Event, Exited, Output, ReadState
from execserver.client.rules.recovery import SessionState
from execserver.client.rules.starting import EMPTY_ENVIRONMENT, INHERIT_ENVIRONMENT
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
