"""`environmentConfig/read`, `capabilityRoots/*` and `capabilities/*` (wire contract, section 10).

The first request loads what does the work.
"""

from __future__ import annotations

from msgspec import Raw

from execserver.handlers.context import Call
from execserver.handlers.filesystem import operations
from execserver.handlers.registry import handles
from execserver.handlers.replies import Later
from execserver.protocol.discovery import (
    DiscoverV2CapabilitiesRequest,
    EnvironmentConfigReadParams,
    WireCapabilityRootsDiscoverParams,
)
from execserver.protocol.error_texts import missing_field
from execserver.protocol.methods import (
    CAPABILITIES_DISCOVER_V2,
    CAPABILITY_ROOTS_DISCOVER_V1,
    ENVIRONMENT_CONFIG_READ,
)
from execserver.protocol.paths import PathUri
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.services.files.filesystem import FileService
from execserver.services.files.sandboxed import ConfinedFiles


@handles(ENVIRONMENT_CONFIG_READ)
def read_config(call: Call, params: EnvironmentConfigReadParams) -> Later:
    """Read the configuration files; other requests are answered meanwhile."""
    from execserver.services.machine.environment_config import ConfigFiles

    services = call.services
    return Later(lambda: ConfigFiles(services.filesystem, services.inherited).read(params), repeats=True)


@handles(CAPABILITY_ROOTS_DISCOVER_V1)
def discover_roots(call: Call, params: WireCapabilityRootsDiscoverParams) -> Later:
    """Search folders for plugins and skills; each with what its sandbox allows."""

    def within(sandbox: FileSystemSandboxContext | None, path: PathUri) -> FileService | ConfinedFiles:
        return operations(call, sandbox, path)

    return Later(lambda: call.services.discovery().in_roots(within, params), repeats=True)


@handles(CAPABILITIES_DISCOVER_V2)
def discover_capabilities(call: Call, params: DiscoverV2CapabilitiesRequest) -> Later:
    """Find the plugins and skills of this machine; the directory only has to be there in the params."""
    if params.sandbox is not None and params.sandbox.cwd is None:
        raise missing_field("cwd")

    def run() -> Raw:
        return call.services.discovery().of_machine(operations(call, params.sandbox))

    return Later(run, repeats=True)
