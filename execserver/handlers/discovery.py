"""`environmentConfig/read` (wire contract, section 10).  The first request loads what does the work."""

from __future__ import annotations

from execserver.handlers.context import Call
from execserver.handlers.registry import handles
from execserver.handlers.replies import Later
from execserver.protocol.discovery import EnvironmentConfigReadParams
from execserver.protocol.methods import ENVIRONMENT_CONFIG_READ


@handles(ENVIRONMENT_CONFIG_READ)
def read_config(call: Call, params: EnvironmentConfigReadParams) -> Later:
    """Read the configuration files; other requests are answered meanwhile."""
    from execserver.services.environment_config import ConfigFiles

    services = call.services
    return Later(lambda: ConfigFiles(services.filesystem, services.inherited).read(params))
