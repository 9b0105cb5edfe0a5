"""Which access a sandbox context grants to which path (wire contract, section 8.7)."""

from __future__ import annotations

from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.sandbox.facts import Facts
from execserver.sandbox.host import Host


class Policy:
    """A context's rules, resolved on one host.  `facts` is what the resolution itself rests on."""

    full_read: bool
    full_write: bool
    network_enabled: bool
    cwd: bytes
    facts: Facts


def file_policy(context: FileSystemSandboxContext, host: Host, server_cwd: bytes) -> Policy:
    """Resolve the context of an fs/* request that passed `intent.file_request_needs_sandbox`."""
    raise NotImplementedError


def process_policy(context: FileSystemSandboxContext, host: Host, process_cwd: bytes) -> Policy:
    """Resolve the context of a process/start that passed `intent.process_request_needs_sandbox`."""
    raise NotImplementedError
