"""Run commands and edit files on this machine for a Codex harness, another program or a user.

The names below are loaded when first used, so that small programs can import this package cheaply.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.cli import (
        run_main,
        run_main_with_listen_url,
        run_remote_environment,
        run_remote_executor,
    )
    from execserver.listen_url import DEFAULT_LISTEN_URL, ExecServerListenUrlParseError
    from execserver.remote.config import RemoteEnvironmentConfig, RemoteExecutorConfig
    from execserver.remote.errors import RemoteError
    from execserver.runtime_paths import ExecServerRuntimePaths
    from execserver.version import __version__

__all__ = [
    "DEFAULT_LISTEN_URL",
    "ExecServerListenUrlParseError",
    "ExecServerRuntimePaths",
    "RemoteEnvironmentConfig",
    "RemoteError",
    "RemoteExecutorConfig",
    "__version__",
    "run_main",
    "run_main_with_listen_url",
    "run_remote_environment",
    "run_remote_executor",
]

_HOMES = {
    "__version__": "execserver.version",
    "DEFAULT_LISTEN_URL": "execserver.listen_url",
    "ExecServerListenUrlParseError": "execserver.listen_url",
    "ExecServerRuntimePaths": "execserver.runtime_paths",
    "RemoteEnvironmentConfig": "execserver.remote.config",
    "RemoteError": "execserver.remote.errors",
    "RemoteExecutorConfig": "execserver.remote.config",
    "run_main": "execserver.cli",
    "run_main_with_listen_url": "execserver.cli",
    "run_remote_environment": "execserver.cli",
    "run_remote_executor": "execserver.cli",
}


def __getattr__(name: str) -> object:
    """Load a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
