"""Who does not use remote mode does not pay for it."""

from __future__ import annotations

import subprocess
import sys

import execserver
from tests.support.source import ROOT

PROBE = """
import sys
sys.path.insert(0, {root!r})
import {module}
parts = ("cryptography", "execserver.remote", "execserver.relay")
print(sorted(name for name in sys.modules if name.startswith(parts)))
"""


def loaded_with(module: str) -> str:
    code = PROBE.format(root=str(ROOT), module=module)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout.strip()


def test_a_plain_server_loads_nothing_of_remote_mode() -> None:
    assert loaded_with("execserver.cli, execserver.app, execserver.server") == "[]"


def test_the_probe_sees_what_remote_mode_loads() -> None:
    found = loaded_with("execserver.remote.serving")
    assert "'cryptography'" in found
    assert "'execserver.remote.streams'" in found


def test_the_public_names_are_there() -> None:
    from execserver.cli import run_remote_environment, run_remote_executor
    from execserver.remote.config import RemoteEnvironmentConfig, RemoteExecutorConfig
    from execserver.remote.errors import RemoteError

    assert execserver.RemoteEnvironmentConfig is RemoteEnvironmentConfig
    assert execserver.RemoteExecutorConfig is RemoteExecutorConfig
    assert execserver.RemoteError is RemoteError
    assert execserver.run_remote_environment is run_remote_environment
    assert execserver.run_remote_executor is run_remote_executor
    config = execserver.RemoteEnvironmentConfig("http://x", "e")
    assert (config.name, config.use_agent_identity_auth, tuple(config.config_overrides)) == (
        "codex-exec-server",
        False,
        (),
    )
