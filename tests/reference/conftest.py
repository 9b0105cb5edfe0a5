"""The reference programs as fixtures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reference.codex_cli import Client
from tests.reference.install import ReferenceMissing, new_home, reference_binary
from tests.reference.model_server import Turn
from tests.reference.scenario import MARK, MakeClient
from tests.support.server_process import OURS, Flavour, ServerProcess, base_environment

ROOT = Path(__file__).resolve().parents[2]


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


@pytest.fixture(scope="session")
def newest_reference() -> Iterator[Flavour]:
    """The newest reference server, answering several requests of a connection at a time as ours does."""
    home = new_home()
    try:
        flavour = reference_flavour("0.169.0", str(home))
        yield replace(flavour, argv=(*flavour.argv, "--concurrent-requests", "4"))
    except ReferenceMissing as missing:
        pytest.skip(str(missing))
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session", params=["ours", "0.142.0"])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """The server under test: ours, or the reference, which every scenario must fit as well."""
    return OURS if request.param == "ours" else request.getfixturevalue("reference")


@pytest.fixture
def server(flavour: Flavour) -> Iterator[ServerProcess]:
    """A fresh server."""
    env = base_environment() | {"EXECUTOR_MARK": MARK}
    with ServerProcess(flavour, env=env, cwd=ROOT) as running:
        yield running


@pytest.fixture(params=["0.142.0", "0.169.0"])
def make_client(request: pytest.FixtureRequest) -> Iterator[MakeClient]:
    """Makes clients of one version, with a script for their model."""
    with ExitStack() as stack:

        def make(script: list[Turn]) -> Client:
            try:
                return stack.enter_context(Client(request.param, script))
            except ReferenceMissing as missing:
                pytest.skip(str(missing))

        yield make
