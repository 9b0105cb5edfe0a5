"""What `connect` loads before it connects: what a part of the programs needs comes when it is needed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.source import ROOT

LATE = (
    "websockets",  # a fifth of all imports, for frames that hardly any connection has
    "execserver_client.files",
    "execserver_client.http",
    "execserver_client.ports",
    "execserver_client.sessions",
    "execserver_client._relay",
    "execserver_client._stdio",
    "execserver_client.sync.files",
    "execserver_client.sync.http",
    "execserver_client.sync.ports",
    "execserver_client.sync.sessions",
    "cryptography",
)


@pytest.mark.parametrize("package", ["execserver_client", "execserver_client.sync"])
def test_connect_does_not_load_what_few_programs_need(package: str) -> None:
    program = f"from {package} import connect; import sys; print(*sys.modules)"
    paths = os.pathsep.join((str(ROOT), str(ROOT / "sdk")))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    loaded = done.stdout.split()
    assert f"{package}.connecting" in loaded
    assert [name for name in LATE if name in loaded] == []
