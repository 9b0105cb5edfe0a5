"""The reference programs as fixtures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.reference.install import ReferenceMissing, new_home, reference_binary
from tests.support.server_process import Flavour


def reference_flavour(version: str, home: str) -> Flavour:
    """Return the command that starts the reference server of this version."""
    binary = reference_binary(version)
    terminated = -15 if version == "0.142.0" else 0
    return Flavour(f"reference {version}", (str(binary), "exec-server"), terminated, {"CODEX_HOME": home})


@pytest.fixture(scope="session")
def reference() -> Iterator[Flavour]:
    """The reference server of the target contract."""
    home = new_home()
    try:
        yield reference_flavour("0.142.0", str(home))
    except ReferenceMissing as missing:
        pytest.skip(str(missing))
    finally:
        shutil.rmtree(home, ignore_errors=True)
